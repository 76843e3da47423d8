"""RASD's rule as the benchmark has it: pruned by the draft model, merged behind shared prefixes, never too large."""

from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.fusion import Rule, fused, model_tree, recorded_model
from benchmarks.fusion_report import Drafters, report
from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore

SAID: dict[int, dict[int, float]] = {0: {1: 0.6, 2: 0.3}, 1: {3: 0.9}, 3: {4: 0.9}}


def model(before: int, token: int) -> Mapping[int, float]:
    return SAID.get(token, {})


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """Of each node, the tokens from below the root to it."""
    found: list[tuple[int, ...]] = [()]
    for parent, token_id in zip(tree.parents[1:], tree.token_ids[1:], strict=True):
        found.append((*found[parent], token_id))
    return set(found[1:])


def test_a_draft_models_tree_has_its_likeliest_paths() -> None:
    tree = model_tree(model, -1, 0, 3)
    assert paths(tree) == {(1,), (1, 3), (1, 3, 4)}
    assert tree.values == pytest.approx([1, 0.6, 0.54, 0.486])
    assert paths(model_tree(model, -1, 0, 9)) == {(1,), (1, 3), (1, 3, 4), (2,)}


def test_retrieved_paths_go_on_behind_what_they_share_and_unlikely_ones_are_left_out() -> None:
    retrieved = DraftTree.root(0)
    shared = retrieved.add(3, retrieved.add(1, 0, "context", 0.5), "context", 0.4)
    retrieved.add(7, shared, "context", 0.3)
    retrieved.add(8, retrieved.add(6, 0, "context", 0.2), "context", 0.1)
    drafted = model_tree(model, -1, 0, 4)

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
    assert recorded(1, 2) == pytest.approx({5: 0.75, 6: 0.25}, abs=1e-4)
    assert recorded(9, 2) == pytest.approx({5: 0.525, 6: 0.175, 7: 0.225, 8: 0.075}, abs=1e-4)
    assert recorded(-1, 1) == recorded(1, 99_999) == {}


def test_the_report_tells_every_way_by_category() -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(100, size=30).tolist()
    positions = np.arange(59)
    top_ids = np.array([*text, *text])[1:, None]
    turn = RecordedTurn(text, text, Successors(positions, top_ids, np.zeros((59, 1), np.float32)))
    lines = report([RecordedRequest("again", [turn])], Drafters(None, 4), [2, 4])
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| again", "| all"]
    assert lines[0].count("|") == 7
    assert lines[2].count(" / ") == 5
