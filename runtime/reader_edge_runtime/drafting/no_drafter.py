"""The drafter of an engine that decodes plainly: it loads nothing, and nobody begins a request with it."""

from collections.abc import Mapping, Sequence

from reader_edge_runtime.array_file import Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftWish, RequestDrafter
from reader_edge_runtime.errors import DraftError, ReaderEdgeError


class NoDrafter:
    """A `LastingDrafter`: what a session's drafter learned elsewhere is kept and saved again as it was."""

    is_ready = True
    num_harvested_rows = 0
    wants_hidden_states = False

    def __init__(self) -> None:
        self._kept: Mapping[str, Array] = {}

    def begin(self, token_ids: Sequence[int]) -> RequestDrafter:
        raise DraftError("This engine decodes plainly: there is nothing to draft with.")

    def draft(self, wishes: Sequence[DraftWish]) -> list[DraftTree | ReaderEdgeError]:
        return [DraftError("This engine decodes plainly: there is nothing to draft with.") for _ in wishes]

    def forget(self) -> None:
        self._kept = {}

    def state(self) -> Mapping[str, Array]:
        return self._kept

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:
        self._kept = dict(arrays)
