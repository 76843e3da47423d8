"""Runs a graph without the runtime, on one tree behind two prompts of different lengths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.package.manifest import MASKED

LENGTHS = [20, 9]
PARENTS = [-1, 0, 0, 1, 1, 2, 4]
NUM_NODES = len(PARENTS)
CAPACITY = 40
NUM_PENDING, MAX_PENDING = 2, 3  # last tokens of a prompt that states do not stand for yet
GARBAGE = 3.3
ELEMENT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
Feed = dict[str, npt.NDArray[Any]]
See = Callable[[npt.NDArray[np.int64], slice], Feed]


def _unseeing(depths: npt.NDArray[np.int64], slots: slice) -> Feed:
    """A `See` of graphs of texts."""
    return {}


class GraphRunner:
    """The contract followed by hand, apart from the runtime: masks, positions and in-place buffers.

    see: of nodes' depths (B, N) in some slots, what a graph of images takes besides, and in place of their positions.
    """

    def __init__(self, graph: Path, window: int | None, library: Path | None = None, see: See = _unseeing) -> None:
        self.see = see
        options = cpu_options(1)
        if library is not None:
            options.register_custom_ops_library(str(library))
        self.session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.window = window
        self.types = {node.name: ELEMENT_TYPES[node.type] for node in self.session.get_inputs()}
        self.gives_rows = any(node.name.startswith("new_") for node in self.session.get_outputs())
        self.buffers = {
            node.name: np.full((2, node.shape[1], CAPACITY, node.shape[3]), GARBAGE, ELEMENT_TYPES[node.type])
            for node in self.session.get_inputs()
            if node.name.startswith("past_")
        }
        sizes = {node.name: node.shape for node in self.session.get_inputs()}
        self.states = {
            name.removeprefix("state_"): np.zeros((2, *shape[1:]), np.float32)
            for name, shape in sizes.items()
            if name.startswith("state_")
        }
        self.pending = {
            name: np.full((2, MAX_PENDING, sizes[f"pending_{name}"][2]), GARBAGE, np.float32) for name in self.states
        }

    def tree_logits(self, prompts: npt.NDArray[np.int64], tree: npt.NDArray[np.int64]) -> Float32Array:
        """Prefill each prompt alone, then both trees in one pass: (2, N, V)."""
        for b, length in enumerate(LENGTHS):
            causal = np.tri(length, dtype=bool)[None]
            slot, chain = slice(b, b + 1), np.arange(length)[None]
            self._run(prompts[slot, :length], chain, causal, [0], slot, chain - 1, [length - NUM_PENDING], [0])
        visible = max(LENGTHS) + NUM_NODES
        seen = np.zeros((2, NUM_NODES, visible), bool)
        positions = np.zeros((2, NUM_NODES), np.int64)
        for b, length in enumerate(LENGTHS):
            seen[b, :, :length] = True
            seen[b, :, length : length + NUM_NODES] = ancestors()
            positions[b] = length + ancestors().sum(axis=1) - 1
        parents = np.tile(PARENTS, (2, 1))
        return self._run(tree, positions, seen, LENGTHS, slice(0, 2), parents, [1, 0], [NUM_PENDING] * 2)

    def _run(
        self,
        input_ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        seen: npt.NDArray[np.bool_],
        write_pos: list[int],
        slots: slice,
        parents: npt.NDArray[np.int64],
        num_kept: list[int],
        num_pending: list[int],
    ) -> Float32Array:
        num_sequences, num_nodes = input_ids.shape
        feed: Feed = {
            "input_ids": input_ids,
            "position_ids": positions,
            "tree_mask": as_mask(seen),
            "write_pos": np.array(write_pos),
            "logit_rows": np.tile(np.arange(num_nodes), (num_sequences, 1)),
        }
        if self.window is not None:
            feed["tree_mask_sliding"] = as_mask(seen & self._near(positions, write_pos, seen.shape[2]))
        feed |= self.see(positions, slots)
        if self.states:
            feed |= {"parents": parents, "num_kept": np.array(num_kept), "num_pending": np.array(num_pending)}
            feed |= {f"pending_{name}": rows[slots] for name, rows in self.pending.items()}
        binding = self.session.io_binding()
        for name, array in feed.items():
            typed = np.ascontiguousarray(array, self.types[name])
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(typed))
        for name, buffer in self.buffers.items():
            value = ort.OrtValue.ortvalue_from_numpy(buffer[slots])
            binding.bind_ortvalue_input(name, value)
            if self.gives_rows:
                binding.bind_output(name.replace("past", "new"), "cpu")
            else:
                binding.bind_ortvalue_output(name.replace("past", "present"), value)
        for name, state in self.states.items():
            value = ort.OrtValue.ortvalue_from_numpy(state[slots])
            binding.bind_ortvalue_input(f"state_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        for name in (*(f"capsule_{name}" for name in self.states), "logits"):
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        if self.gives_rows:
            self._write(binding.get_outputs(), write_pos, slots)
        *capsules, logits = (value.numpy() for value in binding.get_outputs()[-len(self.states) - 1 :])  # bound last
        for rows, capsule in zip(self.pending.values(), capsules, strict=True):
            rows[slots, :NUM_PENDING] = capsule[:, -NUM_PENDING:]
        found: Float32Array = logits
        return found

    def _write(self, new_rows: list[ort.OrtValue], write_pos: list[int], slots: slice) -> None:
        """Put the rows that a pass gives where another graph would have written them."""
        for buffer, value in zip(self.buffers.values(), new_rows, strict=False):
            for rows, new, start in zip(buffer[slots], value.numpy(), write_pos, strict=True):
                rows[:, start : start + new.shape[1]] = new

    def _near(self, positions: npt.NDArray[np.int64], write_pos: list[int], visible: int) -> npt.NDArray[np.bool_]:
        """(B, N, M): whether a row's token lies inside the node's window, by depth."""
        keys = np.tile(np.arange(visible), (len(write_pos), 1))
        for b, start in enumerate(write_pos):
            keys[b, start : start + positions.shape[1]] = positions[b]
        return positions[:, :, None] - keys[:, None, :] < (self.window or 0)


def as_mask(seen: npt.NDArray[np.bool_]) -> Float32Array:
    return np.where(seen, 0, MASKED).astype(np.float32)[:, None]


def ancestors() -> npt.NDArray[np.bool_]:
    """(N, N): whether node j is node i or above it."""
    mask = np.eye(NUM_NODES, dtype=bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask
