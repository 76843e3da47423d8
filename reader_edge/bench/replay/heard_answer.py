"""Recorded answers of a model that tells states, drafted afresh by sources that read these."""

from collections.abc import Iterator, Sequence

import numpy as np

from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.replayed_request import MAX_DEPTH
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass, Target

_CHUNK = 128  # tokens of a pass


class HeardText:
    """A recorded text that grows: what the model said of each token is told once, when a pass would have scored it.

    states: float32 (R, E), of the recorded positions, where sources read them. layer_states: float32 (T, J, E), of all
    tokens, likewise; what is recorded has no gaps then.
    """

    def __init__(
        self, turn: RecordedTurn, states: Float32Array | None = None, layer_states: Float32Array | None = None
    ) -> None:
        assert turn.successors is not None
        self._said, self._states, self._layer_states = turn.successors, states, layer_states
        self.token_ids = list(turn.prompt)
        self._num_told = 0
        self._vocab_size = 1 + int(self._said.top_ids.max())

    def extend(self, token_ids: Sequence[int]) -> Iterator[ScoredTree]:
        """What is new of the tokens before the last one, which no pass has scored yet."""
        self.token_ids += token_ids
        positions = self._said.positions
        new = np.arange(self._num_told, np.searchsorted(positions, len(self.token_ids) - 1))
        for rows in np.split(new, np.flatnonzero(np.diff(positions[new]) != 1) + 1):
            if len(rows):
                first, last = int(positions[rows[0]]), int(positions[rows[-1]])
                root, layer_states = first, None
                if self._layer_states is not None:  # of the prompt's beginning, too, as a pass over it tells them
                    root = first if rows[0] else 0
                    layer_states = self._layer_states[root : last + 1]
                tree = DraftTree.chain(self.token_ids[root : last + 1])
                said = self._said.top_ids[rows], self._said.top_logits[rows]
                states = None if self._states is None else self._states[rows]
                told = range(first - root, last - root + 1)
                yield ScoredTree(tree, told, root, *said, self._vocab_size, states, layer_states)
        self._num_told += len(new)


class ReplayedAnswer:
    """A request of a drafter that follows a recording. states, layer_states: what its sources read of the target.

    token_s: seconds of a token without a draft; 0 where sources may take as long as they like. temperature: that of
    the recording.
    """

    def __init__(
        self,
        drafter: RetrievalDrafter,
        turn: RecordedTurn,
        states: Float32Array | None = None,
        layer_states: Float32Array | None = None,
        token_s: float = 0.0,
        temperature: float = 0.0,
    ) -> None:
        self._drafter = drafter
        self._token_s = token_s
        self._text = HeardText(turn, states, layer_states)
        self._request = drafter.begin(RequestContext(self._text.token_ids, temperature=temperature))

    def draft(self, max_nodes: int) -> DraftTree:
        [tree] = self._drafter.draft([DraftRequest(self._request, max_nodes, MAX_DEPTH, self._token_s)])
        assert isinstance(tree, DraftTree), tree
        return tree

    def extend(self, turn: RecordedTurn) -> None:
        """No turn follows another here: hidden states are recorded for requests of one turn."""
        raise ValueError("a request of several turns has no recorded hidden states")

    def observe(self, token_ids: Sequence[int]) -> None:
        for scored in self._text.extend(token_ids):
            self._request.observe(scored)

    def finish(self) -> None:
        """Each answer is drafted afresh, so that nothing is kept."""


def hidden_states(target: Target, turn: RecordedTurn) -> Float32Array:
    """float32 (R, E), after the recorded positions of a text."""
    assert turn.successors is not None
    text, positions = [*turn.prompt, *turn.output], turn.successors.positions
    wanted = Pass(0, [], [], wants_hidden_states=True)
    heard = [said.hidden_states[0].copy() for said in passes(target, text, wanted) if said.hidden_states is not None]
    return np.concatenate(heard)[positions]


def passes(target: Target, text: Sequence[int], wanted: Pass) -> Iterator[ForwardResult]:
    """What a target says of a text, some tokens at a time, each until the next. wanted: a pass without its trees."""
    cache = target.new_cache(1, len(text))
    for start in range(0, len(text), _CHUNK):
        tree = DraftTree.chain(list(text[start : start + _CHUNK]))
        yield target.forward(cache, wanted._replace(trees=[tree], rows=[range(len(tree))]))
        cache.commit(0, range(len(tree)))


def layer_states(target: Target, turn: RecordedTurn) -> Float32Array:
    """float32 (T, J, E), of all tokens of a text."""
    heard = passes(target, [*turn.prompt, *turn.output], Pass(0, [], [], wants_layer_states=True))
    states = [said.layer_states[:, 0].copy() for said in heard if said.layer_states is not None]
    return np.concatenate(states, 1).swapaxes(0, 1)
