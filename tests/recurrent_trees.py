"""Passes of recurrent operators over random trees, and what a recurrence that knows paths alone makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.recurrent_operators import (
    Recurrence,
    StateInputs,
    TreeInputs,
    tree_conv,
    tree_delta,
    tree_mamba2,
)
from reader_edge_runtime.arrays import Float32Array

Ints = npt.NDArray[np.int64]
Feed = dict[str, npt.NDArray[np.generic]]
Step = Callable[[Float32Array, Float32Array], Float32Array]

TREE_NAMES = ("parents", "num_kept", "num_pending")
NO_NUMBER = np.float32(np.nan)


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees of a pass, padded to one size: num_nodes (B,) are real."""

    parents: Ints
    num_kept: Ints
    num_pending: Ints
    num_nodes: Ints

    def path(self, b: int, node: int) -> list[int]:
        """The nodes from the root to this one."""
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = int(self.parents[b, node])
        return path

    def feed(self) -> Feed:
        """The inputs of operators."""
        return {name: getattr(self, name) for name in TREE_NAMES}


def random_trees(rng: np.random.Generator, batch: int, width: int, num_slots: int) -> Trees:
    """Trees of up to `width` nodes: one has them all; padding names the first node."""
    num_nodes = rng.integers(1, width + 1, batch)
    num_nodes[rng.integers(batch)] = width
    num_kept = np.array([rng.choice([0, 1, n, rng.integers(n + 1)]) for n in num_nodes])
    parents = np.full((batch, width), 0)
    for b in range(batch):
        kept = int(num_kept[b])
        for i in range(num_nodes[b]):
            parents[b, i] = i - 1 if i < kept else rng.integers(max(kept - 1, 0), i) if i > 0 else -1
    parents[:, 0] = -1
    return Trees(parents, num_kept, rng.integers(0, num_slots + 1, batch), num_nodes)


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Sizes of a layer of the gated delta rule, or of Mamba2: key heads, value heads, and what a head has of each."""

    num_key_heads: int
    num_heads: int
    key_size: int
    value_size: int

    @property
    def state(self) -> tuple[int, int, int]:
        return self.num_heads, self.key_size, self.value_size

    def num_capsule(self, is_delta: bool) -> int:
        parts = self.num_key_heads * self.key_size, self.num_heads * self.value_size
        return sum(parts) + self.num_heads * (2 if is_delta else 1)


def state_values(inputs: Sequence[ir.Value]) -> tuple[TreeInputs, StateInputs]:
    """The last five inputs of a graph: those of trees, then state and pending."""
    return TreeInputs(*inputs[-5:-2]), StateInputs(*inputs[-2:])


def outputs_of(recurrence: Recurrence) -> list[ir.Value]:
    """What a graph of one operator gives."""
    return [recurrence.output, recurrence.present, recurrence.capsules]


def delta_inputs(sizes: DeltaSizes) -> dict[str, Sequence[int | str]]:
    """The inputs of a graph of TreeDelta."""
    heads = ("B", "N", sizes.num_heads)
    keys = ("B", "N", sizes.num_key_heads, sizes.key_size)
    own = {"query": keys, "key": keys, "value": (*heads, sizes.value_size), "log_decay": heads, "beta": heads}
    return {**own, **_state_inputs(sizes.state, sizes.num_capsule(True))}


def build_delta(editor: GraphEditor, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """A graph of TreeDelta."""
    query, key, value, log_decay, beta = inputs[:5]
    return outputs_of(tree_delta(editor, query, key, value, log_decay, beta, *state_values(inputs)))


def delta_feed(rng: np.random.Generator, sizes: DeltaSizes, trees: Trees, num_slots: int) -> Feed:
    """Inputs of TreeDelta for these trees; what nobody may read is no number."""
    batch, width = trees.parents.shape
    shape = (batch, width, sizes.num_heads)
    rows = {name: _keys(rng, sizes, batch, width) for name in ("query", "key")}
    rows["value"] = rng.standard_normal((*shape, sizes.value_size), np.float32)
    rows["log_decay"], rows["beta"] = -rng.random(shape, np.float32), rng.random(shape, np.float32)
    pending = rng.random((batch, num_slots, sizes.num_capsule(True)), np.float32) / np.float32(sizes.key_size)
    return _feed(rng, rows, trees, sizes.state, pending)


def mamba2_inputs(sizes: DeltaSizes) -> dict[str, Sequence[int | str]]:
    """The inputs of a graph of Mamba2's recurrence."""
    heads = ("B", "N", sizes.num_heads)
    groups = ("B", "N", sizes.num_key_heads, sizes.key_size)
    own: dict[str, Sequence[int | str]] = {"x": (*heads, sizes.value_size), "dt": heads, "a": (sizes.num_heads,)}
    own |= {"b": groups, "c": groups, "d": (sizes.num_heads,)}
    return {**own, **_state_inputs(sizes.state, sizes.num_capsule(False))}


def build_mamba2(editor: GraphEditor, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """A graph of Mamba2's recurrence."""
    x, dt, a, b, c, d = inputs[:6]
    return outputs_of(tree_mamba2(editor, x, dt, a, b, c, d, *state_values(inputs)))


def mamba2_feed(rng: np.random.Generator, sizes: DeltaSizes, trees: Trees, num_slots: int) -> Feed:
    """Inputs of Mamba2's recurrence for these trees."""
    batch, width = trees.parents.shape
    shape = (batch, width, sizes.num_heads)
    rows = {name: _keys(rng, sizes, batch, width) for name in ("b", "c")}
    rows["x"] = rng.standard_normal((*shape, sizes.value_size), np.float32)
    rows["dt"] = rng.random(shape, np.float32)
    pending = rng.random((batch, num_slots, sizes.num_capsule(False)), np.float32) / np.float32(sizes.key_size)
    feed = _feed(rng, rows, trees, sizes.state, pending)
    feed["a"], feed["d"] = -rng.random(sizes.num_heads, np.float32), rng.random(sizes.num_heads, np.float32)
    return feed


@dataclass(frozen=True, slots=True)
class Conv:
    """A short convolution: weight (C, K), bias (C,)."""

    weight: Float32Array
    bias: Float32Array

    @classmethod
    def random(cls, num_channels: int, num_taps: int) -> "Conv":
        rng = np.random.default_rng(num_channels)
        return cls(rng.standard_normal((num_channels, num_taps), np.float32), rng.random(num_channels, np.float32))

    def inputs(self) -> dict[str, Sequence[int | str]]:
        """The inputs of a graph of it."""
        num_channels, num_taps = self.weight.shape
        rows: dict[str, Sequence[int | str]] = {"rows": ("B", "N", num_channels)}
        return {**rows, **_state_inputs((num_taps - 1, num_channels), num_channels)}

    def build(self, editor: GraphEditor, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """A graph of it."""
        weight, bias = editor.constant(self.weight, "weight"), editor.constant(self.bias, "bias")
        conv = tree_conv(editor, inputs[0], weight, bias, *state_values(inputs))
        return [conv.output, conv.present]

    def behind(self, window: Float32Array, row: Float32Array) -> Float32Array:
        """What it makes of a row (C,) behind a window (K - 1, C)."""
        total = row * self.weight[:, -1]
        for before in range(1, self.weight.shape[1]):
            total = total + window[-before] * self.weight[:, -1 - before]
        return np.asarray(total + self.bias)


def conv_feed(rng: np.random.Generator, conv: Conv, trees: Trees, num_slots: int) -> Feed:
    """Inputs of a convolution for these trees."""
    num_channels, num_taps = conv.weight.shape
    batch, width = trees.parents.shape
    rows = {"rows": rng.standard_normal((batch, width, num_channels), np.float32)}
    pending = rng.standard_normal((batch, num_slots, num_channels), np.float32)
    return _feed(rng, rows, trees, (num_taps - 1, num_channels), pending)


def delta_step(sizes: DeltaSizes, state: Float32Array, capsule: Float32Array) -> Float32Array:
    """The state behind a node of the gated delta rule."""
    key, value, decay, beta = _parts(sizes, capsule)
    decayed = state * decay[:, None, None]
    change = (value - _ascending(decayed * key[:, :, None])) * beta[:, None]
    changed: Float32Array = decayed + key[:, :, None] * change[:, None]
    return changed


def scan_step(sizes: DeltaSizes, state: Float32Array, capsule: Float32Array) -> Float32Array:
    """The state behind a node of Mamba2."""
    key, value, decay, _ = _parts(sizes, capsule)
    changed: Float32Array = state * decay[:, None, None] + key[:, :, None] * value[:, None]
    return changed


def read(sizes: DeltaSizes, state: Float32Array, query: Float32Array) -> Float32Array:
    """What a query (Hk, Dk) reads of a state: (Hv, Dv)."""
    return _ascending(state * query.repeat(sizes.num_heads // sizes.num_key_heads, 0)[:, :, None])


def states_along(step: Step, state: Float32Array, capsules: Sequence[Float32Array]) -> Float32Array:
    """The state behind these capsules."""
    for capsule in capsules:
        state = step(state, capsule)
    return state


def window_behind(window: Float32Array, rows: Sequence[Float32Array]) -> Float32Array:
    """The last rows, as many as a window (K - 1, C) has."""
    return np.concatenate([window, *(row[None] for row in rows)])[len(rows) :]


def _parts(sizes: DeltaSizes, capsule: Float32Array) -> tuple[Float32Array, Float32Array, Float32Array, Float32Array]:
    num_keys, num_values = sizes.num_key_heads * sizes.key_size, sizes.num_heads * sizes.value_size
    ends = np.cumsum([num_keys, num_values, sizes.num_heads])
    keys, values, decay, beta = np.split(capsule, ends)
    key = keys.reshape(sizes.num_key_heads, sizes.key_size).repeat(sizes.num_heads // sizes.num_key_heads, 0)
    return key, values.reshape(sizes.num_heads, sizes.value_size), decay, beta


def _ascending(products: Float32Array) -> Float32Array:
    """Sums over the keys of (H, Dk, Dv), one after another."""
    total = products[:, 0]
    for k in range(1, products.shape[1]):
        total = total + products[:, k]
    return total


def _keys(rng: np.random.Generator, sizes: DeltaSizes, batch: int, width: int) -> Float32Array:
    keys = rng.standard_normal((batch, width, sizes.num_key_heads, sizes.key_size), np.float32)
    return np.asarray(keys / np.sqrt((keys * keys).sum(-1, keepdims=True)))


def _state_inputs(state: Sequence[int], num_capsule: int) -> dict[str, Sequence[int | str]]:
    trees: dict[str, Sequence[int | str]] = {"parents": ("B", "N"), "num_kept": ("B",), "num_pending": ("B",)}
    return {**trees, "state": ("B", *state), "pending": ("B", "P", num_capsule)}


def _feed(
    rng: np.random.Generator, rows: dict[str, Float32Array], trees: Trees, state: Sequence[int], pending: Float32Array
) -> dict[str, npt.NDArray[np.generic]]:
    for b, num_nodes in enumerate(trees.num_nodes):
        for array in rows.values():
            array[b, num_nodes:] = NO_NUMBER
        pending[b, trees.num_pending[b] :] = NO_NUMBER
    stored = rng.standard_normal((len(trees.parents), *state), np.float32)
    return {**rows, **trees.feed(), "state": stored, "pending": pending}
