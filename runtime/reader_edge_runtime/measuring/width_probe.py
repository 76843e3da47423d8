"""The width probe: does this machine give a node the same bits in every pass?

Losslessness bit for bit needs that a kernel's order of summation depends neither on how wide a pass is nor on where a
node's ancestors lie. Most often it is the single row that has a kernel of its own, as int4 products have on x86 without
AVX-512 and on ARM without dot products. Then passes of one node get a second one, and all widths agree again.

On a GPU kernels may change at some number of rows. Then drafts keep to passes below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.package.manifest import EXACT_ATTENTIONS
from reader_edge_runtime.target import ImageRows, Pass, Target

_PREFIX_LENS = (58, 5)  # the longer one lets wide passes cross 64 visible rows, where kernels change their blocks
_PATH_LEN = 4
_SPACINGS = (1, 2, 4, 7)  # nodes from one of the path to the next


@dataclass(frozen=True, slots=True)
class WidthReport:
    """num_equal of num_rows logit rows had the same bits as in single-token passes; the largest difference seen.

    max_rows: nodes of a pass, over all its trees, up to which that was looked at; None: up to any. Passes are padded to
    powers of two then.
    """

    num_rows: int
    num_equal: int
    max_difference: float
    max_rows: int | None = None

    @property
    def is_invariant(self) -> bool:
        return self.num_equal == self.num_rows


class _Comparison(NamedTuple):
    """One tree's rows: how many, those with the bits of single-token passes, and the largest difference."""

    num_nodes: int
    num_rows: int
    num_equal: int
    max_difference: float


def settle_width(target: Target) -> tuple[Target, WidthReport]:
    """The target to use and its report: where only single rows have other bits, one whose passes never have one row."""
    comparisons = _compare(target)
    report = _judge(target, comparisons)
    if _sum(comparisons).is_invariant:
        return target, report
    paired = target.with_min_rows(2)
    paired_report = _judge(paired, _compare(paired))
    is_better = not report.is_invariant or (paired_report.max_rows or 0) > (report.max_rows or 0)
    return (paired, paired_report) if paired_report.is_invariant and is_better else (target, report)


def probe_width(target: Target) -> WidthReport:
    """Compare one path's logits in single-token passes with wider ones: a chain, and paths scattered in trees."""
    return _sum(_compare(target))


def _judge(target: Target, comparisons: Sequence[_Comparison]) -> WidthReport:
    """Of all trees; or, where a package that promises bits is padded, of those before the first one with other bits."""
    if target.pass_sizes and target.manifest.attention in EXACT_ATTENTIONS:
        equal = list(takewhile(lambda each: each.num_equal == each.num_rows, comparisons))
        if equal:
            max_rows = next(size for size in target.pass_sizes if size >= equal[-1].num_nodes)
            return replace(_sum(equal), max_rows=max_rows)
    return _sum(comparisons)


def _sum(comparisons: Sequence[_Comparison]) -> WidthReport:
    num_rows, num_equal = sum(each.num_rows for each in comparisons), sum(each.num_equal for each in comparisons)
    return WidthReport(num_rows, num_equal, max((each.max_difference for each in comparisons), default=0.0))


def _compare(target: Target) -> list[_Comparison]:
    """Trees from narrow to wide; one for each of the target's sizes, if it has such."""
    vocab_size = target.manifest.vocab_size
    prefix_len = next((n for n in _PREFIX_LENS if n + 2 * _PATH_LEN <= target.manifest.max_context), None)
    if prefix_len is None:
        return []
    room = target.manifest.max_context - prefix_len
    token_ids = [int(i) for i in np.random.Generator(np.random.Philox(0)).integers(vocab_size, size=128)]
    prefix, path, others = token_ids[:prefix_len], token_ids[prefix_len:][:_PATH_LEN], token_ids[prefix_len + 8 :]
    cache = target.new_cache(1, prefix_len + 32)
    _score_prefix(target, cache, prefix, 0)
    cache.checkpoint(0)
    reference = _single_passes(target, cache, path)
    comparisons = [] if target.manifest.images is None else [_compare_cut(target, prefix, path[0], reference[0])]
    for length, spacing in _forms(target.pass_sizes):
        tree, nodes = _scattered(path[:length], others, spacing)
        if len(tree) > room:
            continue
        every = range(len(tree))  # as decoding asks: the head's product has a width too
        logits = target.forward(cache, Pass(0, [tree], [every], wants_logits=True)).wanted_logits[0, nodes]
        num_equal = sum(map(np.array_equal, logits, reference))
        difference = float(np.abs(logits - reference[:length]).max())
        comparisons.append(_Comparison(len(tree), length, num_equal, difference))
    return comparisons


def _score_prefix(target: Target, cache: Cache, prefix: Sequence[int], start: int, end: int | None = None) -> None:
    """Write the rows of a part of the prefix; where the model sees images, there is one of made-up features in it."""
    end = len(prefix) if end is None else end
    images, num_nodes = None, end - start
    if (part := target.manifest.images) is not None:
        first, last = len(prefix) // 2, len(prefix) - 1  # of the image, which the text goes on behind
        features = np.random.Generator(np.random.Philox(1)).standard_normal((last - first, part.row_size), np.float32)
        places = np.arange(start, end)
        indices = np.where((first <= places) & (places < last), places - first, -1)
        spans = (
            [(first - start, last - start)] if part.sees_whole_image != "none" and start <= first < last <= end else []
        )
        images = ImageRows(indices, features, np.tile(places, (3, 1)), spans)
    tree = DraftTree.chain(list(prefix[start:end]))
    target.forward(cache, Pass(0, [tree], [[0]], num_kept=num_nodes, images=images))
    cache.commit(0, list(range(num_nodes)))


def _compare_cut(target: Target, prefix: Sequence[int], token_id: int, reference: Float32Array) -> _Comparison:
    """What follows an image that was scored in two passes or, where it must be seen whole, without the text before."""
    assert target.manifest.images is not None
    cache = target.new_cache(1, len(prefix) + 32)
    cut = len(prefix) // 2 + (target.manifest.images.sees_whole_image == "none")
    _score_prefix(target, cache, prefix, 0, cut)
    _score_prefix(target, cache, prefix, cut)
    logits = _single_passes(target, cache, [token_id])[0]
    is_equal = np.array_equal(logits, reference)
    return _Comparison(1, 1, int(is_equal), float(np.abs(logits - reference).max()))


def _forms(pass_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Of each tree, nodes on the path, and how far apart they are: one tree for each size, a few without sizes."""
    if not pass_sizes:
        return [(_PATH_LEN, spacing) for spacing in _SPACINGS]
    wide = [(min(size, _PATH_LEN), size) for size in pass_sizes if size > 1]
    return [(length, (size - 1) // (length - 1)) for length, size in wide]


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
