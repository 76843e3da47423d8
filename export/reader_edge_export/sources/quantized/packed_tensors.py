"""The tensors of a quantised folder: those that make a matrix together become one, which is widened when it is read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.awq_gptq import Gptq, awq_packing
from reader_edge_export.sources.quantized.compressed_tensors import CompressedTensors
from reader_edge_export.sources.quantized.float_matrices import FloatMatrices
from reader_edge_export.sources.quantized.formats import AWQ, GPTQ, Quantization
from reader_edge_export.sources.quantized.packing import Packing
from reader_edge_runtime.errors import ExportError


@dataclass(frozen=True, slots=True)
class PackedTensor(StoredTensor):
    """A matrix in several parts. is_transposed: whether it is read with its inputs first, which no format has."""

    packing: Packing
    parts: Mapping[str, StoredTensor]
    is_transposed: bool = False

    def read(self) -> torch.Tensor:
        values = {part: tensor.read() for part, tensor in self.parts.items()}
        matrix = torch.empty(self.shape[::-1] if self.is_transposed else self.shape)
        num_outputs, num_inputs = matrix.shape
        module = self.name.removesuffix(".weight")
        self.packing.codes_of(module, (num_outputs, num_inputs), values).write_into(matrix)
        return matrix.T if self.is_transposed else matrix

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        return self.read()[start:stop]

    def equals(self, other: StoredTensor) -> bool:
        """No tensor is a copy of one that was rounded."""
        return False


def packed_tensors(
    folder: Path, tensors: Mapping[str, StoredTensor], quantization: Quantization
) -> dict[str, StoredTensor]:
    """A folder's tensors by the names of the parameters that they fill, those that say nothing about weights left out.

    Raises ExportError where parts do not fit each other or the config.
    """
    packing = packing_of(quantization)
    packed: dict[str, dict[str, StoredTensor]] = {
        name.rpartition(".")[0]: {} for name in sorted(tensors) if name.rpartition(".")[2] in packing.markers
    }
    if not packed:
        raise ExportError(f"'{folder}' holds no quantised weights, as its config says it does: fetch the model again.")
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if module in packed and part in packing.parts:
            packed[module][part] = tensor
        elif part not in packing.unused:
            found[name] = tensor
    for name, tensor in found.items():
        if tensor.dtype.startswith("F8"):
            raise ExportError(f"'{folder}' holds {name!r:.80} as {tensor.dtype} without scales: fetch the model again.")
    for module, parts in packed.items():
        if (name := f"{module}.weight") in found:
            raise ExportError(
                f"'{folder}' holds {name!r:.80} quantised and as it is: remove one of them, or fetch the model again."
            )
        file = next(iter(parts.values())).file
        found[name] = PackedTensor(name, file, packing.shape_of(module, parts), "F32", packing, parts)
    return found


def packed_as(tensor: StoredTensor, is_transposed: bool) -> StoredTensor:
    """A tensor as its module has it; what is in one part is so already."""
    if not isinstance(tensor, PackedTensor) or not is_transposed:
        return tensor
    return replace(tensor, shape=tensor.shape[::-1], is_transposed=True)


def is_empty_bias(name: str, tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a tensor changes nothing: GPTQ's first tools wrote a bias of noughts for every matrix."""
    matrix = tensors.get(f"{name.removesuffix('bias')}weight")
    return name.endswith(".bias") and isinstance(matrix, PackedTensor) and not tensors[name].read().any()


def packing_of(quantization: Quantization) -> Packing:
    settings: Mapping[str, Any] = quantization.settings
    if quantization.floats:
        return FloatMatrices(quantization.floats)
    if quantization.method == AWQ:
        return awq_packing(settings)
    return Gptq(settings) if quantization.method == GPTQ else CompressedTensors(settings)
