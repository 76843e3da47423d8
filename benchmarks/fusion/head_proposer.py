"""The trained head as a proposer: two tokens ahead."""

from collections.abc import Sequence

import numpy as np

from benchmarks.fusion.proposer import Guesses, Path
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.heard_answer import passes
from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.drafting.sources.head_file import HeadFile, HeadGuesses, HeadModel
from reader_edge_runtime.target import Pass, Target


class HeadProposer:
    """A `Proposer`. target: tells the states that the head reads."""

    def __init__(self, head: HeadFile, model: HeadModel, target: Target) -> None:
        self.ids, self.model, self._target = head.ids.astype(np.int64), model, target
        self._numbers = np.full(target.manifest.vocab_size, len(head.ids), np.int64)
        self._numbers[head.ids] = np.arange(len(head.ids))

    def begin(self, turn: RecordedTurn) -> "HeadText":
        text = [*turn.prompt, *turn.output]
        heard = passes(self._target, text, Pass(0, [], [], wants_hidden_states=True))
        states = [said.hidden_states[0].copy() for said in heard if said.hidden_states is not None]
        return HeadText(self, self._numbers[text], np.concatenate(states))


class HeadText:
    """numbers: int64 (n,), the head's for each token. states: float32 (n, E), behind each."""

    def __init__(self, proposer: HeadProposer, numbers: Int64Array, states: Float32Array) -> None:
        self._proposer, self._numbers, self._states = proposer, numbers, states
        self._said: HeadGuesses

    def go_on(self, num_tokens: int) -> Guesses:
        state, pending = self._states[num_tokens - 2 : num_tokens - 1], self._numbers[num_tokens - 1 : num_tokens]
        self._said = self._proposer.model.guess(state, pending)
        return self._guesses(self._said.numbers[0], self._said.probabilities[0])

    def expand(self, paths: Sequence[Path]) -> list[Guesses]:
        first = self._guesses(self._said.numbers[0], self._said.probabilities[0]).token_ids
        branches = [first.index(path[0]) if len(path) == 1 else len(first) for path in paths]
        nothing: Guesses = Guesses([], [])
        return [
            self._guesses(self._said.next_numbers[0, branch], self._said.next_probabilities[0, branch])
            if branch < self._said.next_numbers.shape[1]
            else nothing
            for branch in branches
        ]

    def _guesses(self, numbers: Int64Array, probabilities: Float32Array) -> Guesses:
        """Without what stands for all tokens that the head does not know."""
        is_known = numbers < len(self._proposer.ids)
        return Guesses(self._proposer.ids[numbers[is_known]].tolist(), probabilities[is_known].tolist())
