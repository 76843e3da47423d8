"""The bundled instructions whose answers a head learns from: every form of words with every topic."""

from importlib import resources


def instructions() -> list[str]:
    """All of them, in an order of which any part mixes forms and topics."""
    forms, topics = _lines("forms.txt"), _lines("topics.txt")  # whose numbers have no divisor in common
    count = len(forms) * len(topics)
    return [forms[i % len(forms)].replace("{}", topics[i % len(topics)]) for i in range(count)]


def _lines(name: str) -> list[str]:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()
