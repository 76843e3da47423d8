"""The width probe: does this machine give a node the same bits in every pass?

A kernel's order of summation may depend on how wide a pass is and on where a node's ancestors lie. Losslessness bit
for bit needs that it does not. The probe runs one path of tokens node by node, as a chain, and scattered among the
branches of wider trees, and compares the logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.kv_cache import KVCache
from reader_edge_runtime.execution.target_model import TargetModel

Float32Array = npt.NDArray[np.float32]

_PREFIX_LEN = 5
_PATH_LEN = 4


@dataclass(frozen=True, slots=True)
class WidthReport:
    """num_equal of num_rows logit rows had the same bits as in single-token passes; the largest difference seen."""

    num_rows: int
    num_equal: int
    max_difference: float

    @property
    def is_invariant(self) -> bool:
        return self.num_equal == self.num_rows


def probe_width(target: TargetModel) -> WidthReport:
    """Compare one path's logits in single-token passes with wider ones: a chain, and paths scattered in trees."""
    vocab_size = target.manifest.vocab_size
    if target.manifest.max_context < _PREFIX_LEN + 2 * _PATH_LEN:
        return WidthReport(0, 0, 0.0)
    room = target.manifest.max_context - _PREFIX_LEN
    token_ids = [int(i) for i in np.random.Generator(np.random.Philox(0)).integers(vocab_size, size=64)]
    prefix, path, others = token_ids[:_PREFIX_LEN], token_ids[_PREFIX_LEN:][:_PATH_LEN], token_ids[16:]
    cache = KVCache(target.manifest, 1, _PREFIX_LEN + 32)
    target.forward(cache, 0, [DraftTree.chain(prefix)], [[0]])
    cache.commit(0, list(range(_PREFIX_LEN)))
    reference = _single_passes(target, cache, path)
    num_rows, num_equal, largest = 0, 0, 0.0
    for spacing in (1, 2, 4, 7):
        tree, nodes = _scattered(path, others, spacing)
        if len(tree) > room:
            continue
        logits = target.forward(cache, 0, [tree], [nodes]).logits[0]
        num_rows += len(nodes)
        num_equal += sum(map(np.array_equal, logits, reference))
        largest = max(largest, float(np.abs(logits - reference).max()))
    return WidthReport(num_rows, num_equal, largest)


def _single_passes(target: TargetModel, cache: KVCache, path: Sequence[int]) -> Float32Array:
    rows = []
    for token_id in path:
        rows.append(target.forward(cache, 0, [DraftTree.chain([token_id])], [[0]]).logits[0, 0].copy())
        cache.commit(0, [0])
    cache.truncate(0, _PREFIX_LEN)
    return np.stack(rows)


def _scattered(path: Sequence[int], others: Sequence[int], spacing: int) -> tuple[DraftTree, list[int]]:
    """A tree that holds `path` at every `spacing`-th node, dead-end branches between; and the path's nodes."""
    tree = DraftTree.root(path[0])
    nodes = [0]
    for depth, token_id in enumerate(path[1:]):
        for k in range(spacing - 1):
            tree.add(others[(depth * spacing + k) % len(others)], nodes[k % len(nodes)], "")
        nodes.append(tree.add(token_id, nodes[-1], ""))
    return tree, nodes
