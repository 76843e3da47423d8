"""What a lossy answer gave up, as users are told."""

from collections.abc import Mapping

from reader_edge.terminal.control_characters import visible


def deviation_sentence(deviation: Mapping[str, object]) -> str:
    """In a line. deviation: as the answer has it."""
    strength = deviation["figures"]
    assert isinstance(strength, Mapping)
    asked = ", ".join(f"{name} {value}" for name, value in strength.items())
    usual = deviation["usual_repeated_4grams"]
    usually = "not known: `reader-edge warm` finds out" if usual is None else f"{usual:.1%}"
    return visible(
        f"Lossy ({deviation['rule']}: {asked}): {deviation['num_changed']} of {deviation['num_tokens']} tokens are not the"
        f" model's choice, {deviation['nats_per_token']:.4f} nats a token given up; {deviation['repeated_4grams']:.1%} of"
        f" 4-grams repeated (usually {usually})."
    )
