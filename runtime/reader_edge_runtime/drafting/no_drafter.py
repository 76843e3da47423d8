"""The drafter of an engine that decodes plainly: it loads nothing, and nobody begins a request with it."""

from collections.abc import Mapping, Sequence

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.errors import DraftError, ReaderEdgeError

_REFUSAL = "This engine decodes plainly: there is nothing to draft with."


class NoDrafter(Drafter):
    """What a session's drafter learned elsewhere is kept and saved again as it was."""

    def __init__(self) -> None:
        self._kept: Mapping[str, Array] = {}

    def begin(self, context: RequestContext) -> RequestDrafter:
        raise DraftError(_REFUSAL)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [DraftError(_REFUSAL) for _ in draft_requests]

    def forget(self) -> None:
        self._kept = {}

    def state(self) -> Mapping[str, Array]:
        return self._kept

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:
        self._kept = dict(arrays)
