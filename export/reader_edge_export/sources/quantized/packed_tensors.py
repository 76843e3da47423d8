"""The tensors of a quantised folder: those that make a matrix together become one, which is widened when it is read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.awq_gptq import Gptq, awq_packing
from reader_edge_export.sources.quantized.bitsandbytes import BitsandbytesEightBits, BitsandbytesFourBits
from reader_edge_export.sources.quantized.compressed_tensors import CompressedTensors
from reader_edge_export.sources.quantized.float_matrices import FloatMatrices
from reader_edge_export.sources.quantized.formats import AWQ, BITSANDBYTES, GPTQ, MLX, Quantization
from reader_edge_export.sources.quantized.mlx import Mlx
from reader_edge_export.sources.quantized.packing import Packing, Parts, wrong_part
from reader_edge_runtime.errors import ExportError


@dataclass(frozen=True, slots=True)
class PackedTensor(StoredTensor):
    """A matrix in several parts, or those of all experts (X, J, K). module: what the parts' names begin with.

    is_transposed: whether it is read with its inputs first, which no format has.
    """

    module: str
    packing: Packing
    parts: Mapping[str, StoredTensor]
    is_transposed: bool = False

    def read(self) -> torch.Tensor:
        if len(self.shape) == 3:
            return self.read_rows(0, self.shape[0])
        matrix = torch.empty(self.shape[::-1] if self.is_transposed else self.shape)
        self._widen({part: tensor.read() for part, tensor in self.parts.items()}, matrix)
        return matrix.T if self.is_transposed else matrix

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        if len(self.shape) == 3:
            return torch.stack([self.read_part(expert) for expert in range(start, stop)])
        return self.read()[start:stop]

    def read_part(self, index: int) -> torch.Tensor:
        if len(self.shape) != 3:
            return self.read()[index]
        matrix = torch.empty(self.shape[1:])
        values = {
            part: tensor.read_part(index) if tensor.shape[:1] == self.shape[:1] else tensor.read()
            for part, tensor in self.parts.items()
        }
        self._widen(values, matrix)
        return matrix

    @property
    def is_in_mxfp4(self) -> bool:
        """Whether it can stay as it is, in the blocks of GGUF's MXFP4."""
        is_one = len(self.shape) == 2 and not self.is_transposed
        return is_one and self.packing.is_in_mxfp4(self.module, self.parts)

    def blocks(self) -> Blocks:
        """As it is stored. Only where `is_in_mxfp4`."""
        pairs, exponents = self.packing.mxfp4_of({part: tensor.read() for part, tensor in self.parts.items()})
        qs = pairs.reshape(*exponents.shape, 16).numpy()
        return Blocks(BLOCK_TYPES["MXFP4"], {"qs": qs, "scale_exponents": exponents.numpy()})

    def equals(self, other: StoredTensor) -> bool:
        """No tensor is a copy of one that was rounded."""
        return False

    def _widen(self, values: dict[str, torch.Tensor], matrix: torch.Tensor) -> None:
        num_outputs, num_inputs = matrix.shape
        self.packing.codes_of(self.module, (num_outputs, num_inputs), values).write_into(matrix)


def packed_tensors(
    folder: Path, tensors: Mapping[str, StoredTensor], quantization: Quantization
) -> dict[str, StoredTensor]:
    """A folder's tensors by the names of the parameters that they fill, those that say nothing about weights left out.

    Raises ExportError where parts do not fit each other or the config.
    """
    packing = packing_of(quantization)
    places = {name: packing.place_of(name) for name in tensors}
    packed: dict[str, dict[str, StoredTensor]] = {
        module: {} for module, part in sorted(places.values()) if part in packing.markers
    }
    if not packed:
        raise ExportError(f"'{folder}' holds no quantised weights, as its config says it does: fetch the model again.")
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        module, part = places[name]
        if module in packed and part in packing.parts:
            packed[module][part] = tensor
        elif part not in packing.unused:
            found[name] = tensor
    for name, tensor in found.items():
        if tensor.dtype.startswith("F8"):
            raise ExportError(f"'{folder}' holds {name!r:.80} as {tensor.dtype} without scales: fetch the model again.")
    for module, parts in packed.items():
        if (name := packing.parameter_of(module)) in found:
            raise ExportError(
                f"'{folder}' holds {name!r:.80} quantised and as it is: remove one of them, or fetch the model again."
            )
        file = next(iter(parts.values())).file
        found[name] = PackedTensor(name, file, _shape_of(packing, module, parts), "F32", module, packing, parts)
    return found


def _shape_of(packing: Packing, module: str, parts: Parts) -> tuple[int, ...]:
    """Of a matrix, or of stacked ones, whose parts are stacked too unless they are one number for all."""
    stacked = [tensor.shape[0] for tensor in parts.values() if len(tensor.shape) == 3]
    if not stacked:
        return packing.shape_of(module, parts)
    shape = packing.shape_of(module, {name: _of_first(tensor, stacked[0]) for name, tensor in parts.items()})
    for name, tensor in parts.items():
        if tensor.shape[:1] != (stacked[0],) and tensor.shape not in ((), (1,)):
            raise wrong_part(module, name, f"the shape {tensor.shape}")
    return stacked[0], *shape


def _of_first(tensor: StoredTensor, num_stacked: int) -> StoredTensor:
    """What is the first of those that are stacked in a tensor."""
    return replace(tensor, shape=tensor.shape[1:]) if tensor.shape[:1] == (num_stacked,) else tensor


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
    if quantization.method == BITSANDBYTES:
        return BitsandbytesFourBits() if quantization.bits == (4,) else BitsandbytesEightBits()
    if quantization.method == MLX:
        return Mlx(settings)
    if quantization.method == AWQ:
        return awq_packing(settings)
    return Gptq(settings) if quantization.method == GPTQ else CompressedTensors(settings)
