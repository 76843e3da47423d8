"""The tensors of a pass that keep their sizes from step to step, and so their places in memory."""

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

Sizes = tuple[int, int, int]


class PassTensors:
    """What passes over B trees of N nodes read and write at R rows, beside KV cache and masks.

    sizes: B, N and R. inputs: int64, by name. logits: float32 (B, R, V), memory that others may share.
    top_ids, top_logits: int64 and float32 (B, R, K).
    """

    def __init__(self, sizes: Sizes, logits: npt.NDArray[np.float32], top_k: int) -> None:
        num_trees, num_nodes, num_rows = sizes
        self.inputs = {
            "input_ids": np.zeros((num_trees, num_nodes), np.int64),
            "position_ids": np.zeros((num_trees, num_nodes), np.int64),
            "write_pos": np.zeros(num_trees, np.int64),
            "logit_rows": np.zeros((num_trees, num_rows), np.int64),
        }
        self.logits = logits
        self.top_ids = np.zeros((num_trees, num_rows, top_k), np.int64)
        self.top_logits = np.zeros((num_trees, num_rows, top_k), np.float32)
        outputs = {"logits": logits, "top_ids": self.top_ids, "top_logits": self.top_logits}
        self._inputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.inputs.items()}
        self._outputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in outputs.items()}

    def bind_to(self, binding: ort.IOBinding) -> None:
        """Let passes of a binding read and write here."""
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            binding.bind_ortvalue_output(name, value)
