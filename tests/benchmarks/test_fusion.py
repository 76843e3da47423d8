"""RASD's rule as the benchmark has it: pruned by the draft model, merged behind shared prefixes, never too large."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from benchmarks.fusion.__main__ import Drafters, HeadedDrafters, report
from benchmarks.fusion.headed_model import HeadedModel
from benchmarks.fusion.rule import Path, Rule, fused, model_tree, recorded_model
from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.sources.head_file import HeadFile, HeadGuesses
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.drafting.sources.head_source import HeadSource
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore

SAID: dict[int, dict[int, float]] = {0: {1: 0.6, 2: 0.3}, 1: {3: 0.9}, 3: {4: 0.9}}


def model(path: Path) -> Mapping[int, float]:
    return SAID.get(path[-1], {})


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """Of each node, the tokens from below the root to it."""
    found: list[tuple[int, ...]] = [()]
    for parent, token_id in zip(tree.parents[1:], tree.token_ids[1:], strict=True):
        found.append((*found[parent], token_id))
    return set(found[1:])


def test_a_draft_models_tree_has_its_likeliest_paths() -> None:
    tree = model_tree(model, (-1, 0), 3)
    assert paths(tree) == {(1,), (1, 3), (1, 3, 4)}
    assert tree.values == pytest.approx([1, 0.6, 0.54, 0.486])
    assert paths(model_tree(model, (-1, 0), 9)) == {(1,), (1, 3), (1, 3, 4), (2,)}


def test_retrieved_paths_go_on_behind_what_they_share_and_unlikely_ones_are_left_out() -> None:
    retrieved = DraftTree.root(0)
    shared = retrieved.add(3, retrieved.add(1, 0, "context", 0.5), "context", 0.4)
    retrieved.add(7, shared, "context", 0.3)
    retrieved.add(8, retrieved.add(6, 0, "context", 0.2), "context", 0.1)
    drafted = model_tree(model, (-1, 0), 4)

    def paths_of(threshold: float, share: float, num_nodes: int) -> set[tuple[int, ...]]:
        tree = fused(drafted, retrieved, SAID[0], Rule(threshold, share), num_nodes)
        tree.check(0, 10, num_nodes + 1)
        return paths(tree)

    assert paths_of(0.1, 0.5, 4) == {(1,), (1, 3), (1, 3, 7), (1, 3, 4)}
    assert paths_of(0.0, 0.5, 5) == {(1,), (1, 3), (1, 3, 4), (1, 3, 7), (6,)}
    assert paths_of(0.5, 0.5, 9) == {(1,), (1, 3), (1, 3, 4), (1, 3, 7), (2,)}
    assert paths_of(2.0, 1.0, 9) == paths(drafted)


def test_the_draft_model_says_what_the_target_said_of_the_pair_or_else_of_the_token() -> None:
    store = SuccessorStore(16)
    logits = np.log(np.array([[0.75, 0.25]], np.float32))
    for text, named in (([1, 2], [5, 6]), ([3, 2], [7, 8])):
        scored = ScoredTree(DraftTree.root(2), range(1), 1, np.array([named]), logits, 100)
        store.learn(scored, text)
    recorded = recorded_model(store)
    assert recorded((1, 2)) == pytest.approx({5: 0.75, 6: 0.25}, abs=1e-4)
    assert recorded((9, 2)) == pytest.approx({5: 0.525, 6: 0.175, 7: 0.225, 8: 0.075}, abs=1e-4)
    assert recorded((-1, 1)) == recorded((1, 99_999)) == {}


def test_the_report_tells_every_way_by_category() -> None:
    turn, states = recorded_turn()
    request = [RecordedRequest("again", [turn])]
    lines = report(request, Drafters(None, 4), [2, 4])
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| again", "| all"]
    assert lines[0].count("|") == 7
    assert lines[2].count(" / ") == 5
    headed = report(request, HeadedDrafters(None, 4, planted_head(), {id(turn): states}), [2, 4])
    assert [name in headed[0] for name in ("our mixture with the head", "RASD's rule with it")] == [True, True]
    assert headed[0].count("|") == 9
    assert headed[2].count(" / ") == 7


class PlantedHead:
    """Guesses tokens 1 and 2 next, and 3 behind 1."""

    def guess(self, hidden_states: Float32Array, pending: Int64Array) -> HeadGuesses:
        ahead = np.array([[[0.9], [0.0]]], np.float32), np.array([[[3], [0]]])
        return HeadGuesses(np.array([[0.6, 0.3]], np.float32), np.array([[1, 2]]), *ahead)


def planted_head() -> HeadSource:
    return HeadSource(HeadFile(HeadSizes(4, 10), np.arange(10, dtype=np.int32), {}), PlantedHead(), 100)


class SilentModel:
    """Knows that 3 and 4 come after 1, and nothing else."""

    def __call__(self, path: Path) -> Mapping[int, float]:
        return {3: 0.5, 4: 0.5} if path[-1] == 1 else {}

    def observe(self, token_ids: Sequence[int]) -> None:
        """Nothing is learned."""


def recorded_turn() -> tuple[RecordedTurn, Float32Array]:
    rng = np.random.default_rng(0)
    text = rng.integers(100, size=30).tolist()
    top_ids = np.array([*text, *text])[1:, None]
    turn = RecordedTurn(text, text, Successors(np.arange(59), top_ids, np.zeros((59, 1), np.float32)))
    return turn, np.zeros((59, 4), np.float32)


def test_a_head_guesses_before_what_was_recorded() -> None:
    turn, states = recorded_turn()
    headed = HeadedModel(SilentModel(), planted_head(), turn, states)
    headed.observe(turn.output[:1])
    assert headed((0, 0)) == pytest.approx({1: 0.6, 2: 0.3})
    assert headed((0, 0, 1)) == pytest.approx({3: 0.9, 4: 0.5})
    assert headed((0, 0, 2)) == {}
    assert headed((0, 0, 3, 1)) == {3: 0.5, 4: 0.5}
