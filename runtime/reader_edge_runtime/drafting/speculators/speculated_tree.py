"""A trained speculator's draft tree while it grows: the tokens that it proposes, and which of them it has scored."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.proposals import BlockTree
from reader_edge_runtime.drafting.speculators.speculator import TreeStep

NAME = "speculator"
_LEAST = 0.005  # probability of a path below which it is left out: no pass has room for it
_MOST_SIBLINGS = 8
_TINY = 1e-30


class FrontierNode(NamedTuple):
    """A node that may be scored next: a token below a node that is scored. open: how likely the draft as it is ends
    right behind it, so that what it says would be new."""

    open: float
    parent: int
    token_id: int


class SpeculatedTree:
    """Grows below a text's last token with each pass of the speculator.

    tree: of the tokens that it names, and of retrieved ones that it has scored, with its own probabilities.
    vocab_size: of the target; ids below it are tokens. temperature: at which the target's tokens are drawn, and so how
    likely one comes that the speculator names; 0 where they are the best.
    """

    def __init__(self, token_id: int, vocab_size: int, temperature: float = 0.0) -> None:
        self.tree: DraftTree = DraftTree.root(token_id)
        self._vocab_size, self._temperature = vocab_size, temperature
        self._children: dict[tuple[int, int], int] = {}  # by parent and token
        self._unnamed: list[float] = []  # of each scored node, the most that a successor can have that is not named
        self._scored = DraftTree.root(token_id)  # in the order in which it was scored
        self._places: dict[int, int] = {}  # scored nodes of `tree` -> of `_scored`
        self._nodes: list[int] = []  # the other way round
        self._states: list[Float32Array] = []

    def add_root(self, top_ids: Int64Array, probabilities: Float32Array, state: Float32Array) -> None:
        """Take what follows the text's last token: int64 and float32 (K,). state: float32 (E,), its next one."""
        self._add_scored(0, top_ids, probabilities, state)

    def add_block(
        self, top_ids: Int64Array, probabilities: Float32Array, pair_logits: Float32Array | None = None
    ) -> None:
        """Take what may stand at each place behind the text's last token: int64 and float32 (places, K).

        pair_logits: float32 (places, K, K), of each token behind each of the place before.
        """
        if self._temperature:
            probabilities = np.stack([tempered(each, self._temperature) for each in probabilities])
        pairs = None
        if pair_logits is not None:
            # The named tokens share what they have together, however the token before changes it.
            with np.errstate(all="ignore"):
                logits = pair_logits / (self._temperature or 1.0)
                powers = np.exp(logits - logits.max(-1, keepdims=True))
                pairs = powers / powers.sum(-1, keepdims=True) * probabilities.sum(-1)[:, None, None]
        self.tree = BlockTree.of(self.tree.token_ids[0], top_ids, probabilities, self._vocab_size, NAME, pairs)

    def candidates(self, draft: DraftTree, max_depth: int) -> list[FrontierNode]:
        """Nodes of a draft made with this tree that could be scored next, the most promising first."""
        named, depths, open_values = {0: 0}, [0] * len(draft), list(draft.values)
        for node in range(1, len(draft)):
            parent = draft.parents[node]
            open_values[parent] -= draft.values[node]
            depths[node] = depths[parent] + 1
            child = self._children.get((named.get(parent, -1), draft.token_ids[node]))
            if child is not None:
                named[node] = child
        found = []
        for node in range(1, len(draft)):
            parent = named.get(draft.parents[node], -1)
            if parent in self._places and named.get(node) not in self._places and depths[node] < max_depth:
                found.append(FrontierNode(max(open_values[node], 0.0), parent, draft.token_ids[node]))
        return sorted(found, reverse=True)

    def step(self, chosen: Sequence[FrontierNode]) -> TreeStep:
        """The pass that scores some candidates; `add` takes what it says."""
        states, num_scored = [], len(self._scored)
        for candidate in chosen:
            parent = self._places[candidate.parent]
            node = self._child(candidate.parent, candidate.token_id)
            self._places[node] = self._scored.add(candidate.token_id, parent, NAME)
            self._nodes.append(node)
            states.append(self._states[parent])
        return TreeStep(self._scored, num_scored, np.stack(states))

    def add(self, top_ids: Int64Array, probabilities: Float32Array, states: Float32Array) -> None:
        """Take what a pass says of the nodes of the last step: int64 and float32 (n, K), and float32 (n, E)."""
        first = len(self._states)
        for number, node in enumerate(self._nodes[first:]):
            self._take(node, top_ids[number], probabilities[number], states[number])

    def _add_scored(self, node: int, top_ids: Int64Array, probabilities: Float32Array, state: Float32Array) -> None:
        self._places[node] = len(self._nodes)
        self._nodes.append(node)
        self._take(node, top_ids, probabilities, state)

    def _take(self, node: int, top_ids: Int64Array, probabilities: Float32Array, state: Float32Array) -> None:
        """What is no probability, or no token's id, is left out with all behind it: the likeliest come first."""
        self._states.append(state.copy())
        if self._temperature:
            probabilities = tempered(probabilities, self._temperature)
        tree, path, least, left = self.tree, self.tree.values[node], 1.0, 1.0
        for token_id, probability in zip(top_ids.tolist(), probabilities.tolist(), strict=True):
            is_usable = 0 <= token_id < self._vocab_size and probability <= least
            if not is_usable or path * probability < _LEAST:
                break
            least, left = probability, left - probability
            if (node, token_id) not in self._children:
                self._children[node, token_id] = tree.add(token_id, node, NAME, path * probability)
            if len(tree) > 1 and tree.parents[-_MOST_SIBLINGS:].count(node) == _MOST_SIBLINGS:
                break
        self._unnamed.append(min(max(left, 0.0), least))

    def _child(self, parent: int, token_id: int) -> int:
        """The node of a token, made where the speculator has not named it."""
        node = self._children.get((parent, token_id))
        if node is None:
            share = self._unnamed[self._places[parent]]
            node = self.tree.add(token_id, parent, NAME, self.tree.values[parent] * share)
            self._children[parent, token_id] = node
        return node


def tempered(probabilities: Float32Array, temperature: float) -> Float32Array:
    """What the likeliest tokens, (K,), best first, have at a temperature if they have this at 1.

    The tokens that are not named count as if each had as much as the last that is.
    """
    with np.errstate(all="ignore"):  # what is no probability stays none
        named = probabilities.astype(np.float64)
        relative = (named / named[0]) ** (1 / temperature)
        num_unnamed = max(1 - named.sum(), 0.0) / max(named[-1], _TINY)
        shares: Float32Array = (relative / (relative.sum() + num_unnamed * relative[-1])).astype(np.float32)
    return shares
