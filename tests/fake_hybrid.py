"""A target without weights that has a recurrent layer: it checks that each node's state is that of the node's text."""

from dataclasses import replace

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.hybrid_cache import HybridCache
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest

_PRIME = 8191  # products with it are exact in float32
LAYERS = (Layer.attention(1, 2), Layer.recurrent({"delta": (2,)}, {"delta": 2}))


def hybrid_manifest(vocab_size: int = 6, max_context: int = 512, eos_token_ids: tuple[int, ...] = ()) -> Manifest:
    return replace(make_manifest(vocab_size, max_context, eos_token_ids), num_layers=2, layers=LAYERS)


class FakeHybridTarget(FakeTarget):
    """A state (2,) is how many tokens a text has, and a number made of all of them; a capsule is place and token."""

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HybridCache(self.manifest, num_slots, capacity)

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        assert isinstance(cache, HybridCache)
        slots = range(wanted.first_slot, wanted.first_slot + len(wanted.trees))
        num_pending = [cache.num_pending(slot) for slot in slots]
        num_kept = [min(wanted.num_kept, len(tree)) for tree in wanted.trees]
        logits: Float32Array = super().logits_of(cache, wanted)  # which makes room
        states = cache.tensors(slots[0], len(slots))["state_delta.1"]
        pending = cache.read_tensors(slots[0], len(slots))["pending_delta.1"]
        capsules = cache.begin_pass(slots[0], len(slots), max(map(len, wanted.trees)))["capsule_delta.1"]
        for b, (slot, tree) in enumerate(zip(slots, wanted.trees, strict=True)):
            state, length = states[b].copy(), cache.lengths[slot]
            for capsule in pending[b, : num_pending[b]]:
                state = _moved(state, capsule)
            text = cache.slab[0, slot, 0, :length, 0].astype(int).tolist()
            np.testing.assert_array_equal(state, state_of(text), f"the state of slot {slot} is of another text")
            states[b] = state
            reached: list[Float32Array] = []
            for node, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
                before = state if parent < 0 else reached[parent]
                capsules[b, node] = before[0], token_id
                reached.append(_moved(before, capsules[b, node]))
                if node < num_kept[b]:
                    assert parent == node - 1
                    states[b] = reached[node]
        cache.end_pass(slots[0], num_kept)
        return logits

    def logits_after(self, token_ids: list[int]) -> Float32Array:
        """Logits (V,) after a text: a fixed function of all its tokens."""
        count, number = state_of(token_ids)
        logits: Float32Array = super().logits_after([int(count), int(number)])
        return logits


def state_of(token_ids: list[int]) -> Float32Array:
    state = np.zeros(2, np.float32)
    for place, token_id in enumerate(token_ids):
        state = _moved(state, np.array([place, token_id], np.float32))
    return state


def _moved(state: Float32Array, capsule: Float32Array) -> Float32Array:
    assert capsule[0] == state[0], "a capsule of another place"
    return np.array([state[0] + 1, (state[1] * 31 + capsule[1] + 1) % _PRIME], np.float32)
