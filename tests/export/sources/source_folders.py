"""Folders as makers and tools write them: experts apart, as one tensor or in MXFP4; quantised by each format's rule."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from safetensors.torch import load_file, save_file

from reader_edge_runtime.arrays import Int64Array
from tests.tiny_models import change_config

_OWN = re.compile(r"(.*)\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def quantized(folder: Path) -> Path:
    """A folder whose config says that its experts are in MXFP4."""
    change_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return folder


def copy_folder(source: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a folder, its tensors changed in place."""
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def mxfp4(tensors: dict[str, torch.Tensor]) -> None:
    """Experts as gpt-oss has them: random numbers of four bits, powers of two near those of the weights."""
    rng = np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        num_experts, num_inputs, num_outputs = tensors.pop(name).shape
        shape = num_experts, num_outputs, num_inputs // 32
        tensors[f"{name}_blocks"] = torch.from_numpy(rng.integers(0, 256, (*shape, 16)).astype(np.uint8))
        tensors[f"{name}_scales"] = torch.from_numpy(rng.integers(121, 125, shape).astype(np.uint8))


def widened(tensors: dict[str, torch.Tensor]) -> None:
    """The same in fp32, as llama.cpp reads it."""
    for name in [name for name in tensors if name.endswith("_blocks")]:
        scales = tensors.pop(name.replace("_blocks", "_scales")).numpy()
        blocks = tensors.pop(name).numpy()
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
        halves = np.concatenate([codes[..., :16] | codes[..., 16:] << 4], -1)  # llama.cpp's order
        rows = np.concatenate([scales[..., None], halves], -1).reshape(-1, 17)
        values = dequantize(rows, Kind.MXFP4).reshape(*blocks.shape[:2], -1)
        tensors[name.removesuffix("_blocks")] = torch.from_numpy(values).transpose(1, 2).contiguous()


def fused(tensors: dict[str, torch.Tensor]) -> None:
    """An expert's own tensors as one of all."""
    own: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name in list(tensors):
        if found := _OWN.fullmatch(name):
            own.setdefault(found[1], {})[int(found[2]), found[3]] = tensors.pop(name)
    for mlp, parts in own.items():
        experts = sorted({expert for expert, _ in parts})
        gate_up = [torch.cat([parts[each, "gate"], parts[each, "up"]]) for each in experts]
        tensors[f"{mlp}.experts.gate_up_proj"] = torch.stack(gate_up)
        tensors[f"{mlp}.experts.down_proj"] = torch.stack([parts[each, "down"] for each in experts])


GROUP_SIZE = 16
IN_ORDER = {4: tuple(range(8)), 8: tuple(range(4))}
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Tensors = dict[str, torch.Tensor]


def packed(codes: Int64Array, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """(R, C) -> int32 (R, C bits / 32), by shifts: `order` tells which of a word's columns comes first, lowest bits."""
    words = np.zeros((len(codes), codes.shape[1] * bits // 32), np.uint64)
    for column in range(words.shape[1]):
        for place, offset in enumerate(order):
            code = codes[:, column * len(order) + offset].astype(np.uint64)
            words[:, column] |= code << np.uint64(place * bits)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


@dataclass(frozen=True)
class Matrix:
    """Random codes (J, K), zero points and scales (J, G) and the group of each input (K,)."""

    codes: Int64Array
    zeros: Int64Array
    scales: npt.NDArray[np.float16]
    groups: Int64Array

    @classmethod
    def draw(cls, shape: tuple[int, int], bits: int, rng: np.random.Generator, is_ordered: bool = False) -> "Matrix":
        num_groups = shape[1] // GROUP_SIZE
        groups = np.arange(shape[1]) // GROUP_SIZE
        return cls(
            rng.integers(0, 2**bits, shape),
            rng.integers(1, 2**bits, (shape[0], num_groups)),
            rng.uniform(0.5, 1.5, (shape[0], num_groups)).astype(np.float16) / np.float16(2 ** (bits + 1)),
            rng.permutation(groups) if is_ordered else groups,
        )

    def widened(self) -> torch.Tensor:
        products = (self.codes - self.zeros[:, self.groups]) * self.scales.astype(np.float64)[:, self.groups]
        return torch.from_numpy(products.astype(np.float32))

    @property
    def half_scales(self) -> torch.Tensor:
        return torch.from_numpy(self.scales)


def _awq(matrix: Matrix, bits: int) -> Tensors:
    codes, zeros = (packed(np.ascontiguousarray(each.T), bits, _AWQ_ORDER) for each in (matrix.codes, matrix.zeros))
    return {"qweight": codes, "qzeros": zeros, "scales": matrix.half_scales.T.contiguous()}


def _gptq(matrix: Matrix, bits: int) -> Tensors:
    return {
        "qweight": packed(matrix.codes, bits, IN_ORDER[bits]).T.contiguous(),
        "qzeros": packed(np.ascontiguousarray(matrix.zeros.T) - 1, bits, IN_ORDER[bits]),
        "scales": matrix.half_scales.T.contiguous(),
        "g_idx": torch.from_numpy(matrix.groups.astype(np.int32)),
    }


def _pack_quantized(matrix: Matrix, bits: int) -> Tensors:
    zeros = np.ascontiguousarray(matrix.zeros.T)  # what is added to a code is added to its zero point
    return {
        "weight_packed": packed(matrix.codes, bits, IN_ORDER[bits]),
        "weight_zero_point": packed(zeros, bits, IN_ORDER[bits]).T.contiguous(),
        "weight_scale": matrix.half_scales,
        "weight_shape": torch.tensor(matrix.codes.shape),
    }


def _int_quantized(matrix: Matrix, bits: int) -> Tensors:
    return {
        "weight": torch.from_numpy((matrix.codes - 128).astype(np.int8)),
        "weight_zero_point": torch.from_numpy((matrix.zeros - 128).astype(np.int8)),
        "weight_scale": matrix.half_scales,
        "input_scale": torch.ones(1),
    }


def _compressed(form: str, bits: int) -> dict[str, object]:
    weights = {"num_bits": bits, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP_SIZE}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


@dataclass(frozen=True)
class Writer:
    settings: Mapping[str, object]
    parts: Callable[[Matrix, int], Tensors]
    bits: int
    is_ordered: bool = False


_GPTQ_SETTINGS = {"quant_method": "gptq", "group_size": GROUP_SIZE, "sym": False}
WRITERS = {
    "awq": Writer({"quant_method": "awq", "bits": 4, "group_size": GROUP_SIZE, "version": "gemm"}, _awq, 4),
    "gptq4": Writer(_GPTQ_SETTINGS | {"bits": 4, "desc_act": True}, _gptq, 4, is_ordered=True),
    "gptq8": Writer(_GPTQ_SETTINGS | {"bits": 8, "desc_act": False}, _gptq, 8),
    "pack4": Writer(_compressed("pack-quantized", 4), _pack_quantized, 4),
    "int8": Writer(_compressed("int-quantized", 8), _int_quantized, 8),
}


def quantize_folder(folder: Path, plain: Path, writer: Writer) -> None:
    """Quantise a folder's layers in place; `plain`, a copy of it, gets the widened weights."""
    rng = np.random.default_rng(0)
    weights = load_file(folder / "model.safetensors")
    widened = dict(weights)
    for name in sorted(weights):
        if ".layers." in name and weights[name].ndim == 2:
            rows, columns = weights[name].shape
            matrix = Matrix.draw((rows, columns), writer.bits, rng, writer.is_ordered)
            widened[name] = matrix.widened()
            del weights[name]
            parts = writer.parts(matrix, writer.bits)
            weights |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in parts.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    save_file(widened, plain / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config=writer.settings)
