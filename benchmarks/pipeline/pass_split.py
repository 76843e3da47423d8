"""How a step's draft is split into two passes, of which one is sent directly behind the other.

Stages work on the second while later ones have the first. Its answer is waited for where the target goes on from the
first into it, and is of no use else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Split:
    """Draft nodes of a step's passes, and the tokens a second that they promise.

    second: none where the first pass is sent alone.
    """

    first: list[int]
    second: list[int]
    rate: float


def best_split(
    tree: DraftTree, factor: float, times: Float64Array, trip_s: float, num_stages: int, where: str
) -> Split:
    """The split of a draft with the most expected tokens a second; the first pass gets the best nodes.

    factor: of values. times: seconds of a pass of n nodes in all stages, float64 (1 + W,). trip_s: of all links.
    where: the second pass gets the best nodes "anywhere" below, below the likeliest "leaf", or "nowhere".
    """
    order = sorted(range(len(tree)), key=tree.values.__getitem__, reverse=True)
    best, expected, most = Split([0], [], 0.0), 1.0, len(times) - 1
    for num_first in range(1, min(len(order), most) + 1):
        first, taken = order[:num_first], set(order[:num_first])
        expected += factor * tree.values[first[-1]] if num_first > 1 else 0.0
        second = _second_nodes(tree, order, num_first, where)[:most]
        values = factor * np.array([0.0, *(tree.values[node] for node in second)])
        is_entry = np.array([False, *(tree.parents[node] in taken for node in second)])
        waits = second_wait(float(times[num_first]), times[: len(values)], num_stages)
        seconds = times[num_first] + trip_s + (values * is_entry).cumsum() * waits
        rates = (expected + values.cumsum()) / seconds
        num_second = int(rates.argmax())
        if rates[num_second] > best.rate:
            best = Split(first, second[:num_second], float(rates[num_second]))
    return best


def second_wait(first_s: float, second_s: Float64Array, num_stages: int) -> Float64Array:
    """By how much the answers to second passes are behind the first one's, where stages take equal parts of each.

    second_s: float64 (W,); 0 is returned for what is infinite there, no pass.
    """
    behind = np.maximum(second_s / num_stages, second_s - first_s * (num_stages - 1) / num_stages)
    return np.where(np.isfinite(second_s), behind, 0.0)


def _second_nodes(tree: DraftTree, order: list[int], num_first: int, where: str) -> list[int]:
    """What a second pass may hold, best first."""
    if where == "nowhere":
        return []
    first = order[:num_first]
    if where == "anywhere":
        return order[num_first:]
    inner = {tree.parents[node] for node in first}
    below = {next(node for node in first if node not in inner)}
    for node, parent in enumerate(tree.parents):
        if parent in below:
            below.add(node)
    return [node for node in order[num_first:] if node in below]


def cut(tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
    """The tree of these nodes, each with its parent."""
    kept = sorted(nodes)
    numbers = {node: number for number, node in enumerate(kept)}
    return DraftTree(
        [tree.token_ids[node] for node in kept],
        [numbers.get(tree.parents[node], -1) for node in kept],
        [tree.sources[node] for node in kept],
        [tree.values[node] for node in kept],
    )


def num_taken(tree: DraftTree, text: Sequence[int]) -> int:
    """Nodes below the root that a text goes through."""
    node = num = 0
    for token_id in text:
        node = tree.child(node, token_id)
        if node < 0:
            break
        num += 1
    return num
