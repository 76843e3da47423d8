"""The width probe: does this machine give a node the same bits in every pass?

Losslessness bit for bit needs that a kernel's order of summation depends neither on how wide a pass is nor on where a
node's ancestors lie. Most often it is the single row that has a kernel of its own, as int4 products have on x86 without
AVX-512 and on ARM without dot products. Then passes of one node get a second one, and all widths agree again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Pass, Target

_PREFIX_LENS = (58, 5)  # the longer one lets wide passes cross 64 visible rows, where kernels change their blocks
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


def settle_width(target: Target) -> tuple[Target, WidthReport]:
    """The target to use and its report: where only single rows have other bits, one whose passes never have one row."""
    report = probe_width(target)
    if not report.is_invariant:
        paired = target.with_min_rows(2)
        paired_report = probe_width(paired)
        if paired_report.is_invariant:
            return paired, paired_report
    return target, report


def probe_width(target: Target) -> WidthReport:
    """Compare one path's logits in single-token passes with wider ones: a chain, and paths scattered in trees."""
    vocab_size = target.manifest.vocab_size
    prefix_len = next((n for n in _PREFIX_LENS if n + 2 * _PATH_LEN <= target.manifest.max_context), None)
    if prefix_len is None:
        return WidthReport(0, 0, 0.0)
    room = target.manifest.max_context - prefix_len
    token_ids = [int(i) for i in np.random.Generator(np.random.Philox(0)).integers(vocab_size, size=128)]
    prefix, path, others = token_ids[:prefix_len], token_ids[prefix_len:][:_PATH_LEN], token_ids[prefix_len + 8 :]
    cache = target.new_cache(1, prefix_len + 32)
    target.forward(cache, Pass(0, [DraftTree.chain(prefix)], [[0]], num_kept=prefix_len))
    cache.commit(0, list(range(prefix_len)))
    cache.note_place(0)
    reference = _single_passes(target, cache, path)
    num_rows, num_equal, largest = 0, 0, 0.0
    for spacing in (1, 2, 4, 7):
        tree, nodes = _scattered(path, others, spacing)
        if len(tree) > room:
            continue
        logits = target.forward(cache, Pass(0, [tree], [nodes], wants_logits=True)).wanted_logits[0]
        num_rows += len(nodes)
        num_equal += sum(map(np.array_equal, logits, reference))
        largest = max(largest, float(np.abs(logits - reference).max()))
    return WidthReport(num_rows, num_equal, largest)


def _single_passes(target: Target, cache: Cache, path: Sequence[int]) -> Float32Array:
    prefix_len = cache.lengths[0]
    rows = []
    for token_id in path:
        wanted = Pass(0, [DraftTree.chain([token_id])], [[0]], wants_logits=True, num_kept=1)
        rows.append(target.forward(cache, wanted).wanted_logits[0, 0].copy())
        cache.commit(0, [0])
    cache.cut(0, prefix_len)
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
