"""The bundled instructions whose answers a head learns from: every form of words with every topic."""

from importlib import resources

FEWEST_ANSWERS = 16  # of which one is held out


def instructions() -> list[str]:
    """All of them, in an order of which any part mixes forms and topics."""
    forms, topics = _lines("forms.txt"), _lines("topics.txt")  # whose numbers have no divisor in common
    count = len(forms) * len(topics)
    return [forms[i % len(forms)].replace("{}", topics[i % len(topics)]) for i in range(count)]


def is_held_out(number: int) -> bool:
    """Whether the answer to a prompt of this number measures heads, and trains none."""
    return number % FEWEST_ANSWERS == FEWEST_ANSWERS - 1


def _lines(name: str) -> list[str]:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()
