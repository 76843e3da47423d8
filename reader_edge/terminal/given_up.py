"""What a lossy answer gave up, as users are told."""

from collections.abc import Mapping

from reader_edge.terminal.control_characters import visible


def given_up_sentence(given_up: Mapping[str, object]) -> str:
    """In a line. given_up: as the answer has it."""
    strength = given_up["strength"]
    assert isinstance(strength, Mapping)
    asked = ", ".join(f"{name} {value}" for name, value in strength.items())
    usual = given_up["usual_repeated_4grams"]
    usually = "not known: `reader-edge warm` finds out" if usual is None else f"{usual:.1%}"
    return visible(
        f"Lossy ({given_up['rule']}: {asked}): {given_up['num_changed']} of {given_up['num_tokens']} tokens are not the"
        f" model's choice, {given_up['nats_per_token']:.4f} nats a token given up; {given_up['repeated_4grams']:.1%} of"
        f" 4-grams repeated (usually {usually})."
    )
