"""A trained head as the draft model of RASD's rule: its two tokens ahead, and behind them what the target said."""

from collections.abc import Mapping, Sequence

from benchmarks.fusion.rule import DraftModel, Path
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.heard_answer import HeardText
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.sources.head_source import HeadSource

_AHEAD = 2  # tokens that a head guesses


class HeadedModel:
    """Follows a recorded turn. recorded: says what comes where the head says nothing. states: float32 (R, E)."""

    def __init__(self, recorded: DraftModel, head: HeadSource, turn: RecordedTurn, states: Float32Array) -> None:
        self._recorded, self._head = recorded, head
        self._text = HeardText(turn, states)
        self._request = head.begin(RequestContext(self._text.token_ids))
        self._guessed: dict[Path, dict[int, float]] = {}  # by what was drafted before it

    def observe(self, token_ids: Sequence[int]) -> None:
        """Hear what was said of the tokens before the last one, and guess behind it."""
        self._recorded.observe(token_ids)
        for scored in self._text.extend(token_ids):
            self._request.observe(scored)
        [tree] = self._head.propose([DraftRequest(self._request, 1, _AHEAD)])
        self._guessed = {}
        paths: list[Path] = [()]
        if tree is None:
            return
        for node, (parent, token_id) in enumerate(zip(tree.parents[1:], tree.token_ids[1:], strict=True), start=1):
            above = paths[parent]
            paths.append((*above, token_id))
            self._guessed.setdefault(above, {}).setdefault(token_id, tree.values[node] / tree.values[parent])

    def __call__(self, path: Path) -> Mapping[int, float]:
        """Each token has the greater of both probabilities."""
        recorded, guessed = self._recorded(path), self._guessed.get(path[2:], {})
        return {each: max(recorded.get(each, 0.0), guessed.get(each, 0.0)) for each in {**recorded, **guessed}}
