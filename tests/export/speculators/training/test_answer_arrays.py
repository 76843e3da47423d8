"""A file of answers is learned from only where it holds what a package may have written."""

from collections.abc import Callable

import numpy as np
import pytest

from reader_edge_export.speculators.training.generated_answers import AnswerSizes
from reader_edge_runtime.arrays import Array

Arrays = dict[str, Array]
SIZES = AnswerSizes(vocab_size=9, state_size=2)


def _arrays(context: int = 0) -> Arrays:
    """Two answers: of two tokens to a prompt of one more, and of three to one of two more."""
    return {
        "prompt_ids": np.array([8, 0, 1], np.int32),
        "token_ids": np.array([0, 1, 2, 3, 4], np.int32),
        "states": np.zeros((3 + 2 * context, 2), np.float16),
        "top_ids": np.full((3, 4), 8, np.int32),
        "top_logits": np.zeros((3, 4), np.float32),
        "lengths": np.array([[1, 2, 1 + context, 1, 1], [2, 3, 2 + context, 2, 2]], np.int32),
        "num_prompts": np.array([2], np.int32),
    }


def test_what_was_written_is_sound_with_states_of_no_more_tokens_than_a_prompt_has() -> None:
    assert SIZES.fault(_arrays()) is None
    assert SIZES.fault(_arrays(1)) is None
    assert SIZES.fault(_arrays(2)) == "lengths"  # the first prompt has one besides its last


@pytest.mark.parametrize("name", ["prompt_ids", "token_ids", "states", "top_ids", "top_logits", "lengths"])
@pytest.mark.parametrize(
    "spoilt",
    [
        lambda array: None,
        lambda array: array[:-1],
        lambda array: array[:0],
        lambda array: array[..., None],
        lambda array: array.astype(np.float64),
        lambda array: np.array(0, array.dtype),
    ],
    ids=["missing", "short", "empty", "another dimension", "another type", "a number"],
)
def test_the_array_at_fault_is_named(name: str, spoilt: Callable[[Array], Array | None]) -> None:
    arrays = _arrays()
    found = spoilt(arrays.pop(name))
    assert SIZES.fault(arrays if found is None else arrays | {name: found}) in (name, "prompt_ids")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("prompt_ids", np.array([8, 0, 9], np.int32)),
        ("token_ids", np.array([0, 1, 2, 3, -1], np.int32)),
        ("top_ids", np.full((3, 4), 1 << 30, np.int32)),
        ("states", np.zeros((3, 3), np.float16)),
        ("top_logits", np.full((3, 4), np.nan, np.float32)),
        ("top_logits", np.zeros((3, 3), np.float32)),
        ("lengths", np.array([[1, 2, 1, 1, 1], [2, 3, 3, 2, 1]], np.int32)),
        ("lengths", np.array([[1, 3, 1, 1, 1], [2, 2, 2, 2, 2]], np.int32)),
        ("lengths", np.array([[4, 2, 1, 1, 1], [-1, 3, 2, 2, 2]], np.int32)),
        ("num_prompts", np.zeros(0, np.int32)),
        ("num_prompts", np.array([-1], np.int32)),
        ("num_prompts", np.array([1.0])),
    ],
)
def test_numbers_that_no_package_writes_are_found(name: str, array: Array) -> None:
    assert SIZES.fault(_arrays() | {name: array}) in (name, "states")


def test_tokens_without_a_best_successor_are_found() -> None:
    arrays = _arrays() | {"top_ids": np.zeros((3, 0), np.int32), "top_logits": np.zeros((3, 0), np.float32)}
    assert SIZES.fault(arrays) == "top_logits"
