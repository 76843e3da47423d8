"""The KV cache of engines that only read it: in the host's memory, written by the target."""

from reader_edge_runtime.execution.onnxruntime.device.buckets import MAX_CAPTURED
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvSlab


class RowsCache(HostCache):
    """Each slot's tensors begin with a page, which engines import, and have rows to spare for padded nodes."""

    def foresee(self, num_slots: int) -> None:
        """Slots that are not there yet would be imported with all their rows."""

    def _new_slabs(self, num_slots: int, capacity: int, is_paged: bool) -> list[KvSlab]:
        return super()._new_slabs(num_slots, capacity + MAX_CAPTURED, is_paged=True)

    def _keep(self, slot: int, num_rows: int) -> None:
        """An engine may hold the pages: none is given back."""
        self._num_written[slot] = min(num_rows, self._num_written[slot])
