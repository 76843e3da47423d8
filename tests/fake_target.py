"""A target model without weights: its logits are a function of exactly the tokens a node may see.

It keeps token ids in the KV slab and reads them back, so a row that commit lost, moved wrongly or left stale changes
the answer, as it would with a real model; and it takes milliseconds.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import ForwardResult, TargetModel
from reader_edge_runtime.execution.onnxruntime.host.kv_cache import KVCache
from reader_edge_runtime.package.manifest import FileEntry, Manifest


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
    """Follows TargetModel's `forward`: same arguments, same writes, same result."""

    def __init__(self, manifest: Manifest, order: int = 3, sharpness: float = 2.0) -> None:
        self.manifest = manifest
        self.order = order
        self.sharpness = sharpness
        self.num_passes = 0
        self.min_rows = 1

    def new_cache(self, num_slots: int, capacity: int) -> KVCache:
        return KVCache(self.manifest, num_slots, capacity)

    def num_nodes(self, trees: Sequence[DraftTree]) -> int:
        return TargetModel.num_nodes(cast(TargetModel, self), trees)

    def prefill_chunk(self, past: int) -> int:
        return 256

    def forward(
        self, cache: KVCache, first_slot: int, trees: Sequence[DraftTree], logit_rows: Sequence[Sequence[int]]
    ) -> ForwardResult:
        self.num_passes += 1
        num_nodes = self.num_nodes(trees)
        logits = np.zeros((len(trees), max(map(len, logit_rows)), self.manifest.vocab_size), np.float32)
        for b, tree in enumerate(trees):
            slot, length = first_slot + b, cache.lengths[first_slot + b]
            rows = cache.slab[0, slot, 0]
            rows[length : length + num_nodes] = -1.0  # padding must never be seen
            rows[length : length + len(tree), 0] = tree.token_ids
            rows[length : length + len(tree), 1] = length + tree.depths()
            ancestors = tree.ancestors()
            for r, node in enumerate(logit_rows[b]):
                visible = np.concatenate([rows[:length], rows[length : length + len(tree)][ancestors[node]]])
                np.testing.assert_array_equal(visible[:, 1], np.arange(len(visible)), "rows out of place")
                logits[b, r] = self.logits_after(visible[:, 0].astype(int).tolist())
        top_ids = np.argsort(-logits, axis=-1, kind="stable")[..., : self.manifest.top_k]
        return ForwardResult(top_ids, np.take_along_axis(logits, top_ids, axis=-1), lambda: logits)

    def logits_after(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        """Logits (V,) after a text: a fixed function of its last `order` tokens."""
        key = 0
        for token_id in token_ids[-self.order :]:
            key = key * 1000003 + token_id + 1
        values = np.random.Generator(np.random.Philox(key=key % 2**64)).standard_normal(self.manifest.vocab_size)
        return (self.sharpness * values).astype(np.float32)
