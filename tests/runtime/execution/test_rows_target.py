"""A target over any runner: whatever widths its passes have, rows and logits are those of one pass over the tree."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.rows.rows_target import RowsResult, RowsTarget, best_successors
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest

TREE = DraftTree([8, 9, 10, 11, 12, 13, 14], [-1, 0, 0, 1, 2, 0, 4], [""] * 7)


class PlainRunner:
    """Says what a `FakeTarget` says of what each node sees, whose rows are its tokens and positions."""

    provider = "plain"
    pass_facts: tuple[str, ...] = ("one",)

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.manifest = replace(make_manifest(), hidden_size=2)
        self.pass_sizes = widths
        self.num_bound = 0
        self.num_run: list[int] = []
        self._target = FakeTarget(self.manifest)

    def width_for(self, num_nodes: int) -> int:
        return next((width for width in self.pass_sizes if width >= num_nodes), self.pass_sizes[-1])

    def bound(self, past: Mapping[str, Any]) -> Any:
        self.num_bound += 1
        return past

    def run(self, inputs: Inputs, bound: Any) -> RowsResult:
        width, num_seen = inputs["tree_mask"].shape[2:]
        self.num_run.append(width)
        first = num_seen - width
        assert first == inputs["write_pos"][0]
        own = np.stack([inputs["input_ids"][0], inputs["position_ids"][0]], 1).astype(np.float32)
        rows = np.concatenate([bound["past_key.0"][0, 0, :first], own])
        logits = []
        for node in inputs["logit_rows"][0]:
            visible = rows[inputs["tree_mask"][0, 0, node] == 0]
            np.testing.assert_array_equal(visible[:, 1], np.arange(len(visible)))
            logits.append(self._target.logits_after(visible[:, 0].astype(int).tolist()))
        return RowsResult(
            np.stack(logits), own[inputs["logit_rows"][0]], dict.fromkeys(("past_key.0", "past_value.0"), own[None])
        )


def logits_of(target: Any) -> list[np.ndarray]:
    """Of all nodes of a tree behind a text, twice, in the second of two slots."""
    cache = target.new_cache(2, 16)
    target.forward(cache, Pass(1, [DraftTree.chain([5, 6, 7])], [[2]]))
    cache.commit(1, [0, 1, 2])
    found = []
    for _ in range(2):
        result = target.forward(cache, Pass(1, [TREE], [[0, 6, 3, 3, 5]], wants_logits=True))
        found.append(result.wanted_logits.copy())
        target.release_memory()
    return found


@pytest.mark.parametrize("min_rows", [1, 9])
@pytest.mark.parametrize("widths", [(1,), (3,), (2, 4), (8,), (16,)], ids=str)
def test_logits_are_those_of_one_pass_over_the_tree(widths: tuple[int, ...], min_rows: int) -> None:
    runner = PlainRunner(widths)
    target = RowsTarget(runner).with_min_rows(min_rows)
    assert (target.min_rows, target.pass_sizes, target.pass_facts) == (min_rows, widths, ("one",))
    for found, expected in zip(logits_of(target), logits_of(FakeTarget(make_manifest())), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert set(runner.num_run) <= set(widths)
    assert runner.num_bound == 2  # released, it is bound again


def test_a_runner_of_one_width_gives_states_and_takes_prompts_in_pieces() -> None:
    target = RowsTarget(PlainRunner((3,)))
    result = target.forward(target.new_cache(1, 16), Pass(0, [TREE], [[6, 0, 5]], wants_hidden_states=True))
    assert result.hidden_states is not None
    assert result.hidden_states[0].tolist() == [[14, 3], [8, 0], [13, 1]]
    assert 0 < RowsTarget(PlainRunner((8,))).prefill_chunk(100) <= 64


def test_the_best_come_first_of_any_row() -> None:
    logits = np.array([[[1, 5, 3, 5, 3, 3], [0, 0, 0, 0, 0, 0]]], np.float32)
    top_ids, top_logits = best_successors(logits, 4)
    np.testing.assert_array_equal(top_ids, [[[1, 3, 2, 4], [0, 1, 2, 3]]])
    np.testing.assert_array_equal(top_logits, [[[5, 5, 3, 3], [0, 0, 0, 0]]])
    logits = np.random.default_rng(0).integers(0, 40, (2, 3, 200)).astype(np.float32)
    top_ids, _ = best_successors(logits, 8)
    np.testing.assert_array_equal(top_ids, np.argsort(-logits, axis=2, kind="stable")[..., :8])
    top_ids, _ = best_successors(np.full((1, 1, 5), np.nan, np.float32), 3)
    np.testing.assert_array_equal(top_ids, [[[0, 1, 2]]])
