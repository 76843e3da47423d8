"""A target model without weights: its logits are a function of exactly the tokens a node may see.

It keeps token ids in the KV slab and reads them back, so a row that commit lost, moved wrongly or left stale changes
the answer, as it would with a real model; and it takes milliseconds.
"""

import copy

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import FileEntry, Manifest
from reader_edge_runtime.target import Pass


def make_manifest(vocab_size: int = 32, max_context: int = 512, eos_token_ids: tuple[int, ...] = ()) -> Manifest:
    """A manifest for tests; one layer, one head of two values."""
    entry = FileEntry(0, "0" * 64)
    return Manifest(
        architecture="llama",
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        num_layers=1,
        vocab_size=vocab_size,
        top_k=min(4, vocab_size),
        max_context=max_context,
        sliding_window=None,
        precision="fp32",
        attention="exact",
        kv_dtype="float32",
        eos_token_ids=eos_token_ids,
        bos_token_id=None,
        source_name="test",
        source_fingerprint="test",
        exported_with={},
        checks={},
        files={"model.onnx": entry, "tokenizer.json": entry},
    )


class FakeTarget:
    """A `reader_edge_runtime.target.Target`: same arguments, same writes, same result as a real one."""

    provider = "FakeExecutionProvider"
    is_native = False
    instructions: str | None = None
    pass_sizes: tuple[int, ...] = ()
    pass_facts: tuple[str, ...] = ("fake",)

    def __init__(self, manifest: Manifest, order: int = 3, sharpness: float = 2.0) -> None:
        self.manifest = manifest
        self.order = order
        self.sharpness = sharpness
        self.num_passes = 0
        self.min_rows = 1

    def with_min_rows(self, min_rows: int) -> "FakeTarget":
        other = copy.copy(self)
        other.min_rows = min_rows
        return other

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HostCache(self.manifest, num_slots, capacity)

    def prefill_chunk(self, past: int) -> int:
        return 256

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        logits = self.logits_of(cache, wanted)
        top_ids = np.argsort(-logits, axis=-1, kind="stable")[..., : self.manifest.top_k]
        wants_logits = wanted.wants_logits or wanted.wants_log_sum_exp
        return ForwardResult(top_ids, np.take_along_axis(logits, top_ids, axis=-1), logits if wants_logits else None)

    def release_memory(self) -> None:
        """There is none."""

    def logits_of(self, cache: Cache, wanted: Pass) -> npt.NDArray[np.float32]:
        """What a pass computes, wanted or not: float32 (B, R, V)."""
        assert isinstance(cache, HostCache)
        self.num_passes += 1
        before = wanted.num_before
        num_nodes = pass_width(wanted.trees, self.min_rows, before)
        logits = np.zeros((len(wanted.trees), max(map(len, wanted.rows)), self.manifest.vocab_size), np.float32)
        lengths = cache.lengths[wanted.first_slot : wanted.first_slot + len(wanted.trees)]
        cache.extend(wanted.first_slot, len(wanted.trees), before + num_nodes)
        for b, (length, tree) in enumerate(zip(lengths, wanted.trees, strict=True)):
            rows = cache.slab[0, wanted.first_slot + b, 0]
            ancestors, depths = tree.ancestors_and_depths()
            rows[length + before : length + before + num_nodes] = -1.0  # padding must never be seen
            rows = rows[:, :2]
            rows[length + before : length + len(tree), 0] = tree.token_ids[before:]
            rows[length + before : length + len(tree), 1] = length + depths[before:]
            for r, node in enumerate(wanted.rows[b]):
                visible = np.concatenate([rows[:length], rows[length : length + len(tree)][ancestors[node]]])
                np.testing.assert_array_equal(visible[:, 1], np.arange(len(visible)), "rows out of place")
                logits[b, r] = self.row_logits(visible[:, 0].astype(np.int64))
        return logits

    def row_logits(self, token_ids: Int64Array) -> npt.NDArray[np.float32]:
        """Logits (V,) of a row that sees this text."""
        return self.logits_after(token_ids.tolist())

    def logits_after(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        """Logits (V,) after a text: a fixed function of its last `order` tokens."""
        key = 0
        for token_id in token_ids[-self.order :]:
            key = key * 1000003 + token_id + 1
        values = np.random.Generator(np.random.Philox(key=key % 2**64)).standard_normal(self.manifest.vocab_size)
        return (self.sharpness * values).astype(np.float32)
