"""Which of a model's matrices can stay in the blocks of their GGUF file, and how these are read.

Converters only ever change the order of outputs, and a block lies along the inputs: it stays whole.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.block_types import BLOCK_TYPES, Blocks, BlockType
from reader_edge_export.kept_weights import KeptMatrix, KeptWeights
from reader_edge_export.sources.gguf.blocks import blocks_of
from reader_edge_export.sources.gguf.gguf_file import GgufFile, Tensor
from reader_edge_export.sources.gguf.weights import Placement

Float32Array = npt.NDArray[np.float32]


def kept_weights(file: GgufFile, model: PreTrainedModel) -> KeptWeights:
    """Those of a model that was read from the file, which is asked for the blocks when they are wanted."""
    placement, matrices = Placement(file, model), _matrices(model)
    tensors = [tensor for tensor in placement.tensors() if placement.targets(tensor.name)[0] in matrices]
    names = Counter(tensor.kind.name for tensor in tensors)
    lost = {
        name for tensor in tensors if tensor.kind.name not in BLOCK_TYPES for name in placement.targets(tensor.name)
    }
    weights = KeptWeights(
        num_kept={name: names[name] for name in names if name in BLOCK_TYPES},
        num_others={name: names[name] for name in names if name not in BLOCK_TYPES},
        needs_calibration=any(matrices[name].is_product for name in lost),
    )
    for tensor in tensors:
        start = 0
        for name in placement.targets(tensor.name) if tensor.kind.name in BLOCK_TYPES else ():
            stop = start + placement.stored_shape(name)[0]
            stored = _StoredRows(file, tensor, start, stop, placement.row_order(name))
            weights.add(matrices[name].weight, KeptMatrix(name, stored.block_type, stored.read))
            start = stop
    return weights


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A parameter as graphs have it, (K, J). is_product: whether rows are multiplied by it, or only looked up."""

    weight: Float32Array
    is_product: bool


def _matrices(model: PreTrainedModel) -> dict[str, _Matrix]:
    """By the names of their parameters."""
    products = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    columns = {id(module.weight) for module in products if isinstance(module, Conv1D)}  # (K, J) already
    multiplied = {id(module.weight) for module in products}
    known = multiplied | {id(model.get_input_embeddings().weight)}
    return {
        name: _Matrix(
            parameter.detach().numpy().T if id(parameter) not in columns else parameter.detach().numpy(),
            id(parameter) in multiplied,
        )
        for name, parameter in model.named_parameters()
        if id(parameter) in known
    }


@dataclass(frozen=True, slots=True)
class _StoredRows:
    """Rows [start, stop) of a tensor. order: which of them each output is, None where they are in order."""

    file: GgufFile
    tensor: Tensor
    start: int
    stop: int
    order: npt.NDArray[np.int64] | None

    @property
    def block_type(self) -> BlockType:
        return BLOCK_TYPES[self.tensor.kind.name]

    def read(self) -> Blocks:
        """A matrix (J, K). Raises GgufError for a file that has changed."""
        parts = self.file.read_rows(self.tensor, self.start, self.stop)
        blocks = Blocks.joined([blocks_of(self.block_type, rows) for rows in parts])
        if self.order is None:
            return blocks
        return Blocks(self.block_type, {name: array[self.order] for name, array in blocks.arrays.items()})
