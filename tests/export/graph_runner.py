"""A graph run without the runtime, on one tree behind two prompts of different lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.package.manifest import MASKED

LENGTHS = [20, 9]
PARENTS = [-1, 0, 0, 1, 1, 2, 4]
NUM_NODES = len(PARENTS)
CAPACITY = 40
GARBAGE = 3.3
ELEMENT_TYPES = {"tensor(float)": np.float32, "tensor(int8)": np.int8}

FloatArray = npt.NDArray[np.float32]


class GraphRunner:
    """The contract played by hand, apart from the runtime: masks, positions and in-place buffers."""

    def __init__(self, graph: Path, window: int | None, library: Path | None = None) -> None:
        options = cpu_options(1)
        if library is not None:
            options.register_custom_ops_library(str(library))
        self.session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.window = window
        self.buffers = {
            node.name: np.full((2, node.shape[1], CAPACITY, node.shape[3]), GARBAGE, ELEMENT_TYPES[node.type])
            for node in self.session.get_inputs()
            if node.name.startswith("past_")
        }

    def tree_logits(self, prompts: npt.NDArray[np.int64], tree: npt.NDArray[np.int64]) -> FloatArray:
        """Prefill each prompt alone, then both trees in one pass: (2, N, V)."""
        for b, length in enumerate(LENGTHS):
            causal = np.tri(length, dtype=bool)[None]
            self._run(prompts[b : b + 1, :length], np.arange(length)[None], causal, [0], slice(b, b + 1))
        visible = max(LENGTHS) + NUM_NODES
        seen = np.zeros((2, NUM_NODES, visible), bool)
        positions = np.zeros((2, NUM_NODES), np.int64)
        for b, length in enumerate(LENGTHS):
            seen[b, :, :length] = True
            seen[b, :, length : length + NUM_NODES] = ancestors()
            positions[b] = length + ancestors().sum(axis=1) - 1
        return self._run(tree, positions, seen, LENGTHS, slice(0, 2))

    def _run(
        self,
        input_ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        seen: npt.NDArray[np.bool_],
        write_pos: list[int],
        slots: slice,
    ) -> FloatArray:
        num_sequences, num_nodes = input_ids.shape
        feed: dict[str, npt.NDArray[Any]] = {
            "input_ids": input_ids,
            "position_ids": positions,
            "tree_mask": _as_mask(seen),
            "write_pos": np.array(write_pos),
            "logit_rows": np.tile(np.arange(num_nodes), (num_sequences, 1)),
        }
        if self.window is not None:
            feed["tree_mask_sliding"] = _as_mask(seen & self._near(positions, write_pos, seen.shape[2]))
        binding = self.session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
        for name, buffer in self.buffers.items():
            value = ort.OrtValue.ortvalue_from_numpy(buffer[slots])
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past", "present"), value)
        binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(binding)
        logits: FloatArray = binding.get_outputs()[-1].numpy()  # bound last
        return logits

    def _near(self, positions: npt.NDArray[np.int64], write_pos: list[int], visible: int) -> npt.NDArray[np.bool_]:
        """(B, N, M): whether a row's token lies inside the node's window, by depth."""
        keys = np.tile(np.arange(visible), (len(write_pos), 1))
        for b, start in enumerate(write_pos):
            keys[b, start : start + positions.shape[1]] = positions[b]
        return positions[:, :, None] - keys[:, None, :] < (self.window or 0)


def _as_mask(seen: npt.NDArray[np.bool_]) -> FloatArray:
    return np.where(seen, 0, MASKED).astype(np.float32)[:, None]


def ancestors() -> npt.NDArray[np.bool_]:
    """(N, N): whether node j is node i or above it."""
    mask = np.eye(NUM_NODES, dtype=bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask
