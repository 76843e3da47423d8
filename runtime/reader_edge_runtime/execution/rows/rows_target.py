"""The target whose passes only read the KV cache: it writes the new rows itself, and chooses the best successors.

A wide tree may go through in parts, as its nodes come behind their parents: the rows of earlier parts are in the cache
then. With exact attention every node has the bits of one pass over the whole tree.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Array, Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.execution.inputs import Inputs, padded, prepare_inputs
from reader_edge_runtime.execution.onnxruntime.device.buckets import MAX_CAPTURED
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray, KvSlab
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass


class RowsResult(NamedTuple):
    """What a pass over one tree gives: R logit rows, N nodes.

    logits: float32 (R, V). hidden_states: float32 (R, E), None where none are reported. new_rows: by the names of the
    past, float32 (H, N, D). All of it is valid until the runner's next pass.
    """

    logits: Float32Array
    hidden_states: Float32Array | None
    new_rows: Mapping[str, Float32Array]


class RowsRunner(Protocol):
    """Runs the graph over one tree at a time.

    provider, pass_sizes, pass_facts: as a `reader_edge_runtime.target.Target` has them.
    """

    manifest: Manifest
    provider: str
    pass_sizes: tuple[int, ...]
    pass_facts: tuple[str, ...]

    def width_for(self, num_nodes: int) -> int:
        """Nodes of the pass that so many begin with: it is padded to more, or the others come in later ones."""
        ...

    def bound(self, past: Mapping[str, KvArray]) -> Any:
        """A slot's cache as passes take it, without a copy: by name (1, H, S, D), each beginning with a page."""
        ...

    def run(self, inputs: Inputs, bound: Any) -> RowsResult:
        """One pass of `width_for` nodes and no more rows; integers are int32. Raises ProviderError."""
        ...


class RowsCache(HostCache):
    """Each slot's tensors begin with a page, which engines import, and have rows to spare for padded nodes."""

    def reserve_addresses(self, num_slots: int) -> None:
        """Slots that are not there yet would be imported with all their rows."""

    def _new_slabs(self, num_slots: int, capacity: int, is_paged: bool) -> list[KvSlab]:
        return super()._new_slabs(num_slots, capacity + MAX_CAPTURED, is_paged=True)

    def _keep(self, slot: int, num_rows: int) -> None:
        """An engine may hold the pages: none is given back."""
        self._num_written[slot] = min(num_rows, self._num_written[slot])


def best_successors(logits: Float32Array, top_k: int) -> tuple[Int64Array, Float32Array]:
    """Ids and logits of the best, int64 and float32 (B, R, K), best first, equals by id; logits: float32 (B, R, V)."""
    top_ids = np.empty((*logits.shape[:2], top_k), np.int64)
    for row, ids in zip(logits.reshape(-1, logits.shape[2]), top_ids.reshape(-1, top_k), strict=True):
        least = np.partition(row, -top_k)[-top_k]
        better, equal = np.flatnonzero(row > least), np.flatnonzero(row == least)
        found = np.concatenate([better[np.argsort(-row[better], kind="stable")], equal])[:top_k]
        ids[:] = found if len(found) == top_k else np.argsort(-row, kind="stable")[:top_k]  # of rows with no numbers
    return top_ids, np.take_along_axis(logits, top_ids, axis=2)


_PREFILL_CHUNK = 64


class RowsTarget:
    """A `reader_edge_runtime.target.Target` over any `RowsRunner`."""

    is_native = False
    instructions: str | None = None

    def __init__(self, runner: RowsRunner, min_rows: int = 1) -> None:
        self.manifest = runner.manifest
        self.provider = runner.provider
        self.pass_sizes = runner.pass_sizes
        self.pass_facts = runner.pass_facts
        self.min_rows = min_rows
        self._runner = runner
        self._bound: dict[int, Any] = {}
        self._bound_cache: tuple[RowsCache, int] | None = None

    def with_min_rows(self, min_rows: int) -> "RowsTarget":
        return RowsTarget(self._runner, min_rows)

    def new_cache(self, num_slots: int, capacity: int) -> RowsCache:
        return RowsCache(self.manifest, num_slots, capacity)

    def prefill_chunk(self, past: int) -> int:
        return _PREFILL_CHUNK

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        cache = cast(RowsCache, cache)  # made by `new_cache`
        inputs = prepare_inputs(cache, wanted, self.manifest, self.min_rows)
        sizes = inputs["logit_rows"].shape
        logits = np.empty((*sizes, self.manifest.vocab_size), np.float32)
        hidden_states = np.empty((*sizes, self.manifest.hidden_size or 0), np.float32)
        for b in range(len(wanted.trees)):
            one = {name: array[b : b + 1] for name, array in inputs.items()}
            self._score(cache, wanted.first_slot + b, one, logits[b], hidden_states[b])
        top_ids, top_logits = best_successors(logits, self.manifest.top_k)
        wants_logits = wanted.wants_logits or wanted.wants_log_sum_exp
        return ForwardResult(
            top_ids,
            top_logits,
            logits if wants_logits else None,
            None,
            hidden_states if wanted.wants_hidden_states else None,
        )

    def release_memory(self) -> None:
        self._bound.clear()

    def _score(
        self, cache: RowsCache, slot: int, inputs: Inputs, logits: Float32Array, hidden_states: Float32Array
    ) -> None:
        """Take a tree through, part by part, and note what was requested."""
        rows = cast(Int64Array, inputs["logit_rows"][0])
        past, bound = cache.tensors(slot, 1), self._bound_slot(cache, slot)
        start, num_nodes = 0, inputs["input_ids"].shape[1]
        while start < num_nodes:
            width = self._runner.width_for(num_nodes - start)
            end = min(start + width, num_nodes)
            places = np.flatnonzero((start <= rows) & (rows < end))
            wanted, again = np.unique(rows[places], return_inverse=True)  # batches repeat rows
            result = self._runner.run(_part(inputs, start, end, width, wanted - start), bound)
            logits[places] = result.logits[again]
            if result.hidden_states is not None:
                hidden_states[places] = result.hidden_states[again]
            first = cache.lengths[slot] + start
            for name, new_rows in result.new_rows.items():
                past[name][0, :, first : first + end - start] = new_rows[:, : end - start]
            start = end

    def _bound_slot(self, cache: RowsCache, slot: int) -> Any:
        """Kept until the cache moves."""
        if self._bound_cache != (cache, cache.num_moves):
            self._bound.clear()
            self._bound_cache = cache, cache.num_moves
        if slot not in self._bound:
            self._bound[slot] = self._runner.bound(cache.tensors(slot, 1))
        return self._bound[slot]


def _part(inputs: Inputs, start: int, end: int, width: int, rows: Int64Array) -> Inputs:
    """The pass over nodes [start, end), padded to a width; where no row is requested, it reports on its first."""
    first = int(inputs["write_pos"][0]) + start
    part: Inputs = {
        "write_pos": np.array([first], np.int32),
        "logit_rows": (rows if len(rows) else np.zeros(1)).astype(np.int32)[None],
    }
    for name in inputs.keys() - part.keys():
        if name.startswith("tree_mask"):
            seen = inputs[name][..., start:end, : first + end - start]
            part[name] = _whole(name, seen, (1, 1, width, first + width), np.float32)
        else:
            part[name] = _whole(name, inputs[name][:, start:end], (1, width), np.int32)
    return part


def _whole(name: str, array: Array, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    return np.ascontiguousarray(array if array.shape == shape else padded(name, array, shape), dtype)
