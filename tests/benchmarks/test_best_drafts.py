"""The tree that a target itself grows is the best of all, by enumeration on the demo model."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.best_drafts import best_tree
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Cache, Pass, Target

TEMPERATURE = 0.7


def shares_behind(target: Target, cache: Cache, tokens: list[int]) -> dict[int, float]:
    """What each of the eight likeliest tokens has behind these, of which none is committed."""
    chain = DraftTree.chain(tokens)
    said = target.forward(cache, Pass(0, [chain], [[len(tokens) - 1]], wants_logits=True))
    weights = np.exp((said.wanted_logits[0, 0].astype(np.float64) - said.top_logits[0, 0, 0]) / TEMPERATURE)
    return {int(i): float(weights[i] / weights.sum()) for i in said.top_ids[0, 0]}


@pytest.mark.parametrize("num_nodes", [2, 3, 4])
def test_no_tree_of_as_many_nodes_has_more_to_expect(num_nodes: int, demo_folder: Path) -> None:
    target, _ = settled_target(open_package(demo_folder), EngineConfig(is_probed=False))
    cache = target.new_cache(1, 64)
    text = [11, 250, 33, 7]
    target.forward(cache, Pass(0, [DraftTree.chain(text)], [[0]]))
    cache.commit(0, range(len(text)))
    tree = best_tree(target, cache, 42, num_nodes, TEMPERATURE)
    values: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(3):  # a tree of four nodes is no deeper
        for path in [path for path in values if len(path) == depth]:
            for token_id, share in shares_behind(target, cache, [42, *path]).items():
                values[(*path, token_id)] = values[path] * share
    assert len(values) == 1 + 8 + 64 + 512
    best = sorted(values.values(), reverse=True)[:num_nodes]
    np.testing.assert_allclose(sorted(tree.values, reverse=True), best, rtol=1e-5)
