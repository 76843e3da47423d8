"""The matrices of experts in a folder: of all as one tensor, each expert's as tensors of its own, or in MXFP4.

MXFP4 (gpt-oss) has two numbers of four bits in a byte, the first in its low half, and a power of two for each 32 of an
output's: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.sources.folder.parameter_names import ParameterNames, config_name, put
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.packing import FLOATS
from reader_edge_runtime.errors import ExportError

_OWN = re.compile(r"(.*\.experts)\.(0|[1-9][0-9]{0,4})\.([a-z0-9_]+)\.weight")
_OWN_BY_NUMBER = re.compile(r"experts\.\d")
_PARTS = {  # of an expert: the parameter of all experts that it is in, and behind which other
    **{"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0)},
    **{"w1": ("gate_up_proj", 0), "w3": ("gate_up_proj", 1), "w2": ("down_proj", 0)},
}
_GRANITE = {
    "input_linear.weight": "experts.gate_up_proj",
    "output_linear.weight": "experts.down_proj",
    "router.layer.weight": "router.weight",
}
_BY_MATRIX = re.compile(r"\.experts\.(gate_proj|up_proj|down_proj)\.([0-9]{1,5})\.")  # as ModelOpt splits them
_STACKED = re.compile(r"(.*)\.switch_mlp\.(gate_proj|up_proj|down_proj)\.weight")
_BLOCKS, _SCALES = "_blocks", "_scales"
MXFP4 = BLOCK_TYPES["MXFP4"]
_NUM_PARTS = {"gate_up_proj": 2, "up_proj": 1, "down_proj": 1}  # of which the second has no gate, as Nemotron 3's


class ExpertTensors(ABC):
    """The tensors that fill a parameter (X, ...), an expert's part at a time. num_experts: X."""

    num_experts: int

    @abstractmethod
    def read(self, expert: int) -> torch.Tensor:
        """An expert's part as its module has it, fp32."""


@dataclass(frozen=True, slots=True)
class StackedTensor(StoredTensor):
    """An expert's part of a tensor that has those of all, as MLX writes them. expert: which."""

    stored: StoredTensor
    expert: int

    def read(self) -> torch.Tensor:
        return self.stored.read_part(self.expert)

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        return self.read()[start:stop]


@dataclass(frozen=True, slots=True)
class OwnTensors(ExpertTensors):
    """parts: of each expert, the tensors whose rows make its matrix, one's after the other's."""

    parts: list[list[StoredTensor]]

    @property
    def num_experts(self) -> int:  # type: ignore[override]
        return len(self.parts)

    def read(self, expert: int) -> torch.Tensor:
        return torch.cat([part.read().float() for part in self.parts[expert]])


@dataclass(frozen=True, slots=True)
class TransposedTensors(ExpertTensors):
    """stored: (X, K, J), where the module has (X, J, K), as Qwen3-VL's makers write it."""

    stored: StoredTensor

    @property
    def num_experts(self) -> int:  # type: ignore[override]
        return self.stored.shape[0]

    def read(self, expert: int) -> torch.Tensor:
        return self.stored.read_part(expert).float().T.contiguous()


@dataclass(frozen=True, slots=True)
class Mxfp4Tensors(ExpertTensors):
    """blocks: uint8 (X, J, blocks, 16), where the module has (X, K, J). scales: uint8 (X, J, blocks), powers of two."""

    blocks: StoredTensor
    scales: StoredTensor

    @property
    def num_experts(self) -> int:  # type: ignore[override]
        return self.blocks.shape[0]

    def read(self, expert: int) -> torch.Tensor:
        return torch.from_numpy(self.blocks_of(expert).dequantized(slice(None))).T.contiguous()

    def blocks_of(self, expert: int) -> Blocks:
        """An expert's matrix (J, K), as it is stored."""
        qs, exponents = self.blocks.read_part(expert).numpy(), self.scales.read_part(expert).numpy()
        return Blocks(MXFP4, {"qs": qs, "scale_exponents": exponents})


def gather_experts(
    folder: Path, parameters: ParameterNames, tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], dict[str, ExpertTensors]]:
    """Of a folder's tensors, those that fill a parameter of their own, and others by the parameters that they fill.

    Raises ExportError where an expert's are missing, too many, of another shape, or twice with other values.
    """
    named: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        for own_name, own_tensor in _of_experts(parameters, name, tensor):
            put(folder, named, _newer(own_name, parameters), own_tensor)
    others: dict[str, StoredTensor] = {}
    whole: dict[str, ExpertTensors] = {}
    packed: dict[str, dict[str, StoredTensor]] = {}
    own: dict[str, dict[tuple[int, int], StoredTensor]] = {}
    for name, tensor in named.items():
        if name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in named:
            continue
        if name.endswith(_BLOCKS) and (filled := parameters.name_of(name.removesuffix(_BLOCKS))) is not None:
            scales = _scales_of(folder, parameters, filled, tensor, named)
            put(folder, packed.setdefault(filled, {}), _BLOCKS, tensor)
            put(folder, packed[filled], _SCALES, scales)
        elif _is_transposed(parameters, name, tensor):
            whole[str(parameters.name_of(name))] = TransposedTensors(tensor)
        elif (place := _place_of(parameters, name)) is not None:
            put(folder, own.setdefault(place[0], {}), place[1], tensor)
        else:
            others[name] = tensor
    if twice := packed.keys() & own.keys():
        raise ExportError(
            f"'{folder}' holds {min(twice):.80} in blocks and as tensors of each expert: remove the wrong ones, or "
            "fetch the model again."
        )
    whole = {name: Mxfp4Tensors(each[_BLOCKS], each[_SCALES]) for name, each in packed.items()} | whole
    return others, whole | {name: _checked(folder, parameters, name, each) for name, each in own.items()}


def _place_of(parameters: ParameterNames, name: str) -> tuple[str, tuple[int, int]] | None:
    """Of an expert's own tensor, the parameter that it is a part of, its expert and which part; None of others."""
    if (found := _OWN.fullmatch(name)) is None:
        return None
    experts, expert, matrix = found.groups()
    is_alone = parameters.find(f"{experts}.{matrix}") is not None
    parameter, part = (matrix, 0) if is_alone else _PARTS.get(matrix, ("", 0))
    filled = parameters.name_of(f"{experts}.{parameter}")
    return None if filled is None else (filled, (int(expert), part))


def _of_experts(parameters: ParameterNames, name: str, tensor: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
    """A tensor, or each expert's part of one that MLX stacked, where the model has as many."""
    found = _STACKED.fullmatch(name)
    first = _OWN.fullmatch(_newer(f"{found[1]}.experts.0.{found[2]}.weight", parameters)) if found else None
    filled = parameters.find(f"{first[1]}.down_proj") if first else None
    if found is None or filled is None or tensor.shape[:1] != filled.shape[:1] or len(tensor.shape) != 3:
        yield name, tensor
        return
    for expert in range(tensor.shape[0]):
        own = f"{found[1]}.experts.{expert}.{found[2]}.weight"
        yield own, StackedTensor(own, tensor.file, tensor.shape[1:], tensor.dtype, tensor, expert)


def _is_transposed(parameters: ParameterNames, name: str, tensor: StoredTensor) -> bool:
    """transformers tells by shapes, too, of the one type that has them so."""
    target = parameters.find(name) if name.endswith(tuple(f".experts.{part}" for part in _NUM_PARTS)) else None
    shape = () if target is None else tuple(target.shape)
    return tensor.shape != shape and tensor.dtype in FLOATS and tensor.shape == (*shape[:1], *shape[:0:-1])


def _newer(name: str, parameters: ParameterNames) -> str:
    """What a module of transformers 5 calls a tensor of Granite, ERNIE, Phi, Mixtral, Nemotron or ModelOpt."""
    name = f"model.{name.removeprefix('backbone.')}" if name.startswith("backbone.") else name
    name = _BY_MATRIX.sub(r".experts.\2.\1.", name.replace(".mlp.moe_statics.", ".mlp.gate.moe_statics."))
    before, found, part = name.partition(".block_sparse_moe.")
    is_own = _OWN_BY_NUMBER.match(part) and parameters.find(f"{before}{found}experts.down_proj") is None
    if found and (part == "gate.weight" or is_own):
        newer = f"{before}.mlp.{part}"
        return newer if part != "gate.weight" or parameters.find(newer) is not None else f"{before}.mlp.router.weight"
    return before + found + _GRANITE.get(part, part)


def _scales_of(
    folder: Path, parameters: ParameterNames, name: str, blocks: StoredTensor, tensors: Mapping[str, StoredTensor]
) -> StoredTensor:
    parameter = parameters.find(name)
    assert parameter is not None
    scales = tensors.get(blocks.name.removesuffix(_BLOCKS) + _SCALES)
    shape = (parameter.shape[0], parameter.shape[-1], -(-parameter.shape[-2] // 32)) if parameter.ndim == 3 else ()
    stored = (blocks.shape, blocks.dtype, *((scales.shape, scales.dtype) if scales is not None else ()))
    if scales is None or stored != ((*shape, 16), "U8", shape, "U8") or parameter.shape[-2] % 32:
        raise ExportError(
            f"'{folder}' holds {blocks.name!r:.80} in blocks that do not fit {tuple(parameter.shape)}, which its "
            "config.json says, or without their scales: fetch the model again."
        )
    return scales


def _checked(
    folder: Path, parameters: ParameterNames, name: str, tensors: Mapping[tuple[int, int], StoredTensor]
) -> OwnTensors:
    parameter = parameters.find(name)
    assert parameter is not None
    num_experts, num_outputs, num_inputs = parameter.shape
    num_parts = _NUM_PARTS[name.rpartition(".")[2]]
    wanted = [(expert, part) for expert in range(num_experts) for part in range(num_parts)]
    if unlike := sorted(tensors.keys() ^ set(wanted)):
        config = config_name(folder)
        raise ExportError(
            f"'{folder}' holds {len(tensors)} tensors for {name:.80}, where its {config} says {len(wanted)}, of "
            f"{num_experts} experts, and those of expert {unlike[0][0]} differ: correct {config}, or fetch the model "
            "again."
        )
    for tensor in tensors.values():
        if tensor.shape != (num_outputs // num_parts, num_inputs) or tensor.dtype not in (*FLOATS, "F64"):
            raise ExportError(
                f"'{folder}' holds {tensor.name!r:.80} as {tensor.dtype} of the shape {tensor.shape}, which is not "
                f"{(num_outputs // num_parts, num_inputs)} of numbers as its {config_name(folder)} says: fetch "
                "the model again."
            )
    return OwnTensors([[tensors[expert, part] for part in range(num_parts)] for expert in range(num_experts)])
