"""Source of drafts that a remote client sends for its request, from its own documents and history, which stay there."""

from collections.abc import Sequence
from typing import cast

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DEVICE, DeviceDrafts
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource


class DeviceSource(DraftSource):
    """Has something to say of requests that came with a device alone."""

    name = DEVICE

    def begin(self, context: RequestContext) -> RequestDrafter | None:
        device = context.hints.device
        return None if device is None else _DeviceRequest(context, device)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> Sequence[DraftTree | None]:
        return [cast(_DeviceRequest, each.request).hint(each.max_nodes) for each in draft_requests]


class _DeviceRequest(RequestDrafter):
    """A request whose device may hint at how it goes on."""

    def __init__(self, context: RequestContext, device: DeviceDrafts) -> None:
        super().__init__(context)
        self._device = device

    def hint(self, max_nodes: int) -> DraftTree | None:
        return self._device.hint(self.token_ids, max_nodes)
