"""RASD's rule of fusion, to compare our mixture with at the same number of nodes.

RASD (arXiv 2503.03434) has a draft model's tree and a tree of retrieved text. It keeps what was retrieved where the
draft model finds its first token likely enough (pruning), and merges what is left into that model's tree, each path
behind the longest prefix that they share (fusion). How likely, and how many nodes each tree has, are settings.

The draft model here is what the target itself said of pairs and tokens, the same records that our mixture weighs, and
where there is one a trained head before them (`headed_model`).
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np

from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.replayed_request import MAX_DEPTH, ReplayedRequest
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.kernels.layout import LEVELS
from reader_edge_runtime.drafting.kernels.successors import NAMED, NUM_AND_LEVEL, NUMBERS, find_pair
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore

Path = tuple[int, ...]  # a text's last two tokens (-1: none), and drafted ones behind them
# The draft model's probabilities of the next token, by token.
Model = Callable[[Path], Mapping[int, float]]


class DraftModel(Protocol):
    """One that follows a request."""

    def __call__(self, path: Path, /) -> Mapping[int, float]:
        """Its probabilities of the token behind a path, by token."""

    def observe(self, token_ids: Sequence[int], /) -> None:
        """The text grew by these."""


@dataclass(frozen=True, slots=True)
class Rule:
    """threshold: the draft model's least probability of a retrieved path's first token. share: of the nodes that the
    draft model's tree has at first; where less was retrieved than there is room for, it gets the rest."""

    threshold: float
    share: float


def recorded_model(store: SuccessorStore) -> Model:
    """A store's record of the last two tokens where it has one, else that of the last."""

    def successors(path: Path) -> Mapping[int, float]:
        before, token = path[-2:]
        after_token, after_pair = store.arrays
        with np.errstate(over="ignore"):  # the hash wraps around
            row = find_pair(after_pair, before, token) if before >= 0 else -1
        record = after_pair[row] if row >= 0 else after_token[token] if token < len(after_token) else None
        if record is None:
            return {}
        num_named = int(record[NUM_AND_LEVEL]) // LEVELS
        shares = record[NUMBERS:].view(np.uint16)[:num_named] / 65536
        return dict(zip(record[NAMED : NAMED + num_named].tolist(), shares.tolist(), strict=True))

    return successors


def model_tree(model: Model, path: Path, num_nodes: int) -> DraftTree:
    """A draft model's tree of so many drafted nodes, the likeliest paths first (EAGLE-2, arXiv 2406.16858)."""
    tree = DraftTree.root(path[-1])
    paths = [path]
    pending = [(-p, 0, token_id) for token_id, p in model(path).items()]
    heapq.heapify(pending)
    while pending and len(tree) <= num_nodes:
        value, parent, token_id = heapq.heappop(pending)
        node = tree.add(token_id, parent, "model", -value)
        paths.append((*paths[parent], token_id))
        if len(paths[node]) < MAX_DEPTH + len(path):
            for child, p in model(paths[node]).items():
                heapq.heappush(pending, (value * p, node, child))
    return tree


def fused(model: DraftTree, retrieved: DraftTree, first: Mapping[int, float], rule: Rule, num_nodes: int) -> DraftTree:
    """RASD's tree of so many drafted nodes.

    model, retrieved: both trees, each with that many nodes at most. first: the draft model's probabilities of the next
    token.
    """
    tree = DraftTree.root(model.token_ids[0])
    _merge(tree, model, ceil(rule.share * num_nodes), lambda token_id: True)
    _merge(tree, retrieved, num_nodes, lambda token_id: first.get(token_id, 0.0) >= rule.threshold)
    _merge(tree, model, num_nodes, lambda token_id: True)
    return tree


def _merge(tree: DraftTree, other: DraftTree, num_nodes: int, is_kept: Callable[[int], bool]) -> None:
    """Add another tree's paths, the most valuable first, behind what they share with a tree, up to num_nodes below its
    root. is_kept: of a path's first token."""
    edges = zip(tree.parents, tree.token_ids, strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    places = {0: 0}
    for node in sorted(range(1, len(other)), key=lambda node: -other.values[node]):  # a parent before its children
        parent, token_id = places.get(other.parents[node]), other.token_ids[node]
        if parent is None or (parent == 0 and not is_kept(token_id)):
            continue
        place = children.get((parent, token_id))
        if place is None:
            if len(tree) > num_nodes:
                return
            place = children[parent, token_id] = tree.add(token_id, parent, other.sources[node], other.values[node])
        places[node] = place


class RecordedModel:
    """What the target said in a request before, and in its package's table. core: learns nothing but that."""

    def __init__(self, core: DraftingCore, turn: RecordedTurn) -> None:
        self._listener = ReplayedRequest(core, turn)
        self._model = recorded_model(core.successors)

    def __call__(self, path: Path) -> Mapping[int, float]:
        return self._model(path)

    def observe(self, token_ids: Sequence[int]) -> None:
        self._listener.observe(token_ids)


class FusedRequest:
    """A replayed request drafted for by RASD's rule. retrieval: drafts from texts."""

    def __init__(self, retrieval: DraftingCore, model: DraftModel, rule: Rule, turn: RecordedTurn) -> None:
        self._retrieval, self._model, self._rule = ReplayedRequest(retrieval, turn), model, rule
        self._last: Path = (-1, *turn.prompt)[-2:]

    def draft(self, max_nodes: int) -> DraftTree:
        """A tree of so many nodes, the root included."""
        retrieved = self._retrieval.draft(max_nodes)
        drafted = model_tree(self._model, self._last, max_nodes - 1)
        return fused(drafted, retrieved, self._model(self._last), self._rule, max_nodes - 1)

    def extend(self, turn: RecordedTurn) -> None:
        """No turn follows another here: successors are recorded for requests of one turn."""
        raise ValueError("a request of several turns has no recorded successors")

    def observe(self, token_ids: Sequence[int]) -> None:
        self._retrieval.observe(token_ids)
        self._model.observe(token_ids)
        self._last = (*self._last, *token_ids)[-2:]

    def finish(self) -> None:
        """Each request is drafted for afresh, so that nothing is kept."""
