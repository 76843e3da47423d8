"""Source of drafts that a remote client sends for its request, from its own documents and history, which stay there."""

from collections.abc import Sequence
from typing import cast

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.remote_drafts import DEVICE, RemoteDrafts
from reader_edge_runtime.drafting.sources.source import DraftSource


class RemoteSource(DraftSource):
    """Has something to say of requests that came with drafts of a remote client alone."""

    name = DEVICE

    def begin(self, context: RequestContext) -> RequestDrafter | None:
        remote = context.hints.remote
        return None if remote is None else _RemoteRequest(context, remote)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> Sequence[DraftTree | None]:
        return [cast(_RemoteRequest, each.request).hint(each.max_nodes) for each in draft_requests]


class _RemoteRequest(RequestDrafter):
    """A request whose remote client may hint at how it goes on."""

    def __init__(self, context: RequestContext, remote: RemoteDrafts) -> None:
        super().__init__(context)
        self._remote = remote

    def hint(self, max_nodes: int) -> DraftTree | None:
        return self._remote.hint(self.token_ids, max_nodes)
