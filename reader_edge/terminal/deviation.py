"""How far a lossy answer deviates from the model's own choices, in a sentence."""

from collections.abc import Mapping
from typing import Any

from reader_edge.terminal.control_characters import visible


def deviation_sentence(deviation: Mapping[str, Any]) -> str:
    """In a line. deviation: as the answer has it."""
    figures = ", ".join(f"{name} {value}" for name, value in deviation["figures"].items())
    usual = deviation["usual_repeated_4grams"]
    usually = "not known: `reader-edge warm` finds out" if usual is None else f"{usual:.1%}"
    return visible(
        f"Lossy ({deviation['rule']}: {figures}): {deviation['num_changed']} of {deviation['num_tokens']} tokens are "
        f"not the model's choice, {deviation['nats_per_token']:.4f} nats a token given up; "
        f"{deviation['repeated_4grams']:.1%} of 4-grams repeated (usually {usually})."
    )
