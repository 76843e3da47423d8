"""A package's trained speculator as a proposer."""

from collections.abc import Sequence

import numpy as np

from benchmarks.fusion.proposer import DEPTH, NAME, TOP_K, Guesses, Path
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.heard_answer import layer_states
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator, SpeculatorResult, TreeStep
from reader_edge_runtime.target import Target


class SpeculatorProposer:
    """A `Proposer`. target: tells the states that the speculator reads."""

    def __init__(self, speculator: Speculator, target: Target) -> None:
        self._speculator, self._target = speculator, target
        self._which = [target.manifest.state_ids.index(each) for each in speculator.part.state_ids]

    def begin(self, turn: RecordedTurn) -> "SpeculatedText":
        states = layer_states(self._target, turn)[:, self._which]
        return SpeculatedText(self._speculator, [*turn.prompt, *turn.output], states.reshape(len(states), -1))


class SpeculatedText:
    """states: float32 (n, F), behind each of n tokens."""

    def __init__(self, speculator: Speculator, text: list[int], states: Float32Array) -> None:
        self._speculator, self._text, self._states = speculator, text, states
        self._cache = speculator.new_cache(1, len(text) + TOP_K * DEPTH)
        self._num_read = 1  # the first token has no row: nothing was heard before it
        self._tree = DraftTree.root(text[0])
        self._nodes: dict[Path, int] = {}
        self._next_states: list[Float32Array] = []  # by node

    def go_on(self, num_tokens: int) -> Guesses:
        further, states = slice(self._num_read, num_tokens), slice(self._num_read - 1, num_tokens - 1)
        said = self._speculator.catch_up(self._cache, 0, [self._text[further]], [self._states[states]])
        self._cache.commit(0, range(num_tokens - self._num_read))
        self._num_read = num_tokens
        self._tree, self._nodes = DraftTree.root(self._text[num_tokens - 1]), {(): 0}
        self._next_states = [said.next_states[0, -1].copy()]
        return _guesses(said, 0)

    def expand(self, paths: Sequence[Path]) -> list[Guesses]:
        num_scored = len(self._tree)
        above = [self._nodes[path[:-1]] for path in paths]
        for path, parent in zip(paths, above, strict=True):
            self._nodes[path] = self._tree.add(path[-1], parent, NAME)
        states = np.stack([self._next_states[parent] for parent in above])
        said = self._speculator.step(self._cache, 0, [TreeStep(self._tree, num_scored, states)])
        self._next_states += list(said.next_states[0].copy())
        return [_guesses(said, row) for row in range(len(paths))]


def _guesses(said: SpeculatorResult, row: int) -> Guesses:
    return Guesses(said.top_ids[0, row].tolist(), said.probabilities[0, row].tolist())
