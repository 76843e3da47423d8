"""Matrices of FP8 and FP4: as Qwen and DeepSeek write them, FBGEMM, compressed-tensors and NVIDIA's ModelOpt.

FP8: weight float8_e4m3fn (J, K), weight_scale or weight_scale_inv, which multiply all the same. FP4: weight or
weight_packed uint8 (J, K/2), E2M1 with the first of two in the low half; weight_scale (J, K/16) in float8_e4m3fn beside
a number for the whole matrix, by which weight_scale_2 multiplies and weight_global_scale divides (NVFP4), or (J, K/32)
in powers of two (MXFP4, MXFP8). Sources: transformers' integrations/finegrained_fp8.py, compressed_tensors' compressors
and quantization/lifecycle/forward.py, modelopt's torch/quantization/qtensor; all here in fp32, in their order.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch

from reader_edge_export.sources.quantized.float_schemes import FloatScheme
from reader_edge_export.sources.quantized.packing import (
    FLOATS,
    Codes,
    Packing,
    Parts,
    Values,
    equal_groups,
    part,
    wrong_part,
)

_E4M3 = "F8_E4M3"
_EXPONENTS = ("U8", "F8_E8M0")  # powers of two, 127 more
_E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).to(torch.float8_e4m3fn)
# All experts' matrices are a parameter (X, J, K), and its parts have names of their own.
_OF_EXPERTS = re.compile(r"(.*\.experts\.(?:gate_up_proj|up_proj|down_proj))(?:_([a-z0-9_]+))?")
_TWO = ".experts.gate_up_proj"
_PARTS_OF_EXPERTS = {None: "weight", "scale_inv": "weight_scale_inv", "scale": "weight_scale"}
_WEIGHTS = ("weight", "weight_packed")
_SCALES, _OF_ALL = ("weight_scale", "weight_scale_inv"), ("weight_scale_2", "weight_global_scale")
Part = TypeVar("Part")


class FloatMatrices(Packing):
    """Which scheme a module has is recognised by the shapes of its tensors, and must be one that the config names."""

    parts = ("weight", "weight_packed", *_SCALES, *_OF_ALL)
    markers = ("weight_packed", *_SCALES)
    unused = (
        *("input_scale", "input_global_scale", "activation_scale", "output_scale"),
        *("k_scale", "v_scale", "q_scale", "prob_scale", "prob_output_scale"),
    )

    def __init__(self, schemes: Iterable[FloatScheme]) -> None:
        self._schemes = list(schemes)

    def place_of(self, name: str) -> tuple[str, str]:
        found = _OF_EXPERTS.fullmatch(name)
        return super().place_of(name) if found is None else (found[1], _PARTS_OF_EXPERTS.get(found[2], found[2]))

    def parameter_of(self, module: str) -> str:
        return module if _OF_EXPERTS.fullmatch(module) else super().parameter_of(module)

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        weight, scale = _only(module, parts, _WEIGHTS), _only(module, parts, _SCALES)
        num_rows, num_columns = part(module, parts, weight, ("U8", _E4M3))
        bits = 4 if parts[weight].dtype == "U8" else 8
        shape = num_rows, num_columns * 8 // bits
        dtypes = (*_EXPONENTS, _E4M3) if bits == 4 else (*_EXPONENTS, *FLOATS)
        self._block(module, shape, bits, part(module, parts, scale, dtypes, None))
        if parts[scale].dtype == _E4M3:
            name = _only(module, parts, _OF_ALL)
            if set(size := part(module, parts, name, FLOATS, None)) - {1}:
                raise wrong_part(module, name, f"the shape {size}")
        elif extra := [name for name in _OF_ALL if name in parts]:
            raise wrong_part(module, extra[0], "a second scale")
        return shape

    def is_in_mxfp4(self, module: str, parts: Parts) -> bool:
        weight, scale = _given(parts)
        is_by_32 = weight.shape[:-1] == scale.shape[:-1] and weight.shape[-1] == 16 * scale.shape[-1]
        return is_by_32 and weight.dtype == "U8" and scale.dtype in _EXPONENTS

    def mxfp4_of(self, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
        given, scales = _given(values)
        return given, scales.view(torch.uint8)

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Codes:
        num_rows, num_columns = shape
        given, scales = _given(values)
        bits = 4 if given.dtype == torch.uint8 else 8
        rows, columns = self._block(module, shape, bits, tuple(scales.shape))
        widened = (scales.view(torch.float8_e8m0fnu) if scales.dtype == torch.uint8 else scales).float()
        if "weight_scale_2" in values:
            widened = widened * values["weight_scale_2"].float()
        elif "weight_global_scale" in values:
            widened = widened / values["weight_global_scale"].float()
        by_row = widened.reshape(-(-num_rows // rows), -(-num_columns // columns)).repeat_interleave(rows, dim=0)
        codes = unpacked_e2m1(given) if bits == 4 else given
        return Codes(codes, None, by_row[:num_rows], equal_groups(num_columns, columns))

    def _block(self, module: str, shape: tuple[int, int], bits: int, scale: tuple[int, ...]) -> tuple[int, int]:
        """Of the first of the config's schemes that the tensors can be of."""
        for scheme in self._schemes:
            for rows, columns in _possible_blocks(module, scheme, shape):
                expected = -(-shape[0] // rows), -(-shape[1] // columns)
                if scheme.bits == bits and [n for n in scale if n > 1] == [n for n in expected if n > 1]:
                    return rows, columns
        raise wrong_part(module, "tensors", f"{bits} bits with scales of the shape {scale}")


def _given(parts: Mapping[str, Part]) -> tuple[Part, Part]:
    """Numbers and scales, whatever their names."""
    weight, scale = (next(parts[name] for name in names if name in parts) for names in (_WEIGHTS, _SCALES))
    return weight, scale


def _possible_blocks(module: str, scheme: FloatScheme, shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Where a matrix is two, those of gates and those behind them, no block is of both."""
    rows, columns = (own or whole for own, whole in zip(scheme.block, shape, strict=True))
    half, rest = divmod(shape[0], 2)
    if module.endswith(_TWO) and not rest and scheme.block == (0, 0):
        yield half, columns
    if not module.endswith(_TWO) or rows == shape[0] or half % rows == 0:
        yield rows, columns


def _only(module: str, parts: Parts, names: tuple[str, str]) -> str:
    """Which of two names a part has. Raises ExportError where both are there; `part` refuses that none is."""
    found = [name for name in names if name in parts] or [names[0]]
    if len(found) == 2:
        raise wrong_part(module, found[1], f"a second {found[0]}")
    return found[0]


def unpacked_e2m1(pairs: torch.Tensor) -> torch.Tensor:
    """uint8 (J, W) of two codes a byte -> float8_e4m3fn (J, 2 W), which has the values of E2M1."""
    values = _E2M1.view(torch.uint8)
    both = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1)  # by byte, (256, 2)
    return both[pairs.int()].flatten(-2).view(torch.float8_e4m3fn)
