"""compressed-tensors, as llm-compressor writes it: "pack-quantized", "int-quantized" and "naive-quantized" integers.

Packed: weight_packed int32 (J, ceil(K bits/32)), weight_shape (2,), weight_zero_point int32 (ceil(J bits/32), G),
all of them with 2 ** (bits - 1) added. Else: weight int8 (J, K), weight_zero_point int8 (J, G). weight_scale (J, G),
(J, 1) or (1,). weight_g_idx int32 (K,): the group of each input, where they are in another order.
Source: compressed_tensors/compressors/pack_quantized and quantization/lifecycle/forward.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reader_edge_export.sources.quantized.formats import compressed_schemes
from reader_edge_export.sources.quantized.packing import (
    FLOATS,
    Codes,
    Packing,
    Parts,
    Values,
    equal_groups,
    part,
    unpacked,
    wrong_part,
)

_INTEGERS = ("I32", "I64")


@dataclass(frozen=True, slots=True)
class _Scheme:
    """What a config says of the weights of some modules. group_size: None where a row or a matrix has one scale."""

    bits: int
    group_size: int | None
    is_symmetric: bool


class CompressedTensors(Packing):
    """Which scheme a module has is recognised by the shapes of its tensors, and must be one that the config names."""

    parts = ("weight_packed", "weight_shape", "weight", "weight_scale", "weight_zero_point", "weight_g_idx")
    markers = ("weight_packed", "weight_scale")
    unused = (
        *("input_scale", "input_zero_point", "input_g_idx", "output_scale", "output_zero_point"),
        *("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point"),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._schemes = [
            _Scheme(each.get("num_bits", 8), _group_size(each), each.get("symmetric", True) is True)
            for each, _ in compressed_schemes(settings)
        ]

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        if "weight_packed" in parts and "weight" in parts:
            raise wrong_part(module, "weight", "a second matrix")
        num_rows, num_columns = shape = self._size(module, parts)
        scale = parts["weight_scale"].shape if "weight_scale" in parts else ()
        part(module, parts, "weight_scale", FLOATS, len(scale))
        num_groups = scale[1] if len(scale) == 2 else 1
        if scale not in ((), (1,), (1, 1), (num_rows,), (num_rows, num_groups)) or num_columns % num_groups:
            raise wrong_part(module, "weight_scale", f"the shape {scale}")
        scheme = self._scheme(module, shape, parts, num_groups)
        if "weight_zero_point" in parts:
            zeros = parts["weight_zero_point"]
            is_packed = "weight_packed" in parts and zeros.dtype == "I32"
            wanted = (-(-num_rows * scheme.bits // 32), num_groups) if is_packed else scale
            if zeros.shape != wanted or zeros.dtype not in ("I8", "I32"):
                raise wrong_part(module, "weight_zero_point", f"{zeros.dtype} of the shape {zeros.shape}")
        if "weight_g_idx" in parts and part(module, parts, "weight_g_idx", _INTEGERS, 1) != (num_columns,):
            raise wrong_part(module, "weight_g_idx", f"the shape {parts['weight_g_idx'].shape}")
        return shape

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Codes:
        num_rows, num_columns = shape
        scales = _by_row(values["weight_scale"], num_rows)
        groups = self._groups(module, num_columns, scales.shape[1], values.get("weight_g_idx"))
        zeros = values.get("weight_zero_point")
        if "weight_packed" not in values:
            return Codes(values["weight"], None if zeros is None else _by_row(zeros, num_rows), scales, groups)
        bits = 4 if values["weight_packed"].shape[1] == -(-num_columns // 8) else 8
        codes = unpacked(values["weight_packed"], bits)[:, :num_columns]
        middle = 2 ** (bits - 1)
        if zeros is None:
            zeros = torch.full_like(scales, middle, dtype=torch.int16)
        elif zeros.dtype == torch.int32:  # packed down the rows; the middle was added to it as well as to the codes
            zeros = unpacked(zeros.T, bits)[:, :num_rows].T
        else:
            zeros = _by_row(zeros, num_rows).short() + middle
        return Codes(codes, zeros, scales, groups)

    def _size(self, module: str, parts: Parts) -> tuple[int, int]:
        if "weight_packed" not in parts:
            num_rows, num_columns = part(module, parts, "weight", ("I8",))
            return num_rows, num_columns
        num_rows, num_words = part(module, parts, "weight_packed", ("I32",))
        if part(module, parts, "weight_shape", _INTEGERS, 1) != (2,):
            raise wrong_part(module, "weight_shape", f"the shape {parts['weight_shape'].shape}")
        shape_rows, num_columns = map(int, parts["weight_shape"].read().tolist())
        if shape_rows != num_rows or num_columns < 1 or num_words not in (-(-num_columns // 8), -(-num_columns // 4)):
            raise wrong_part(module, "weight_packed", f"the shape {(num_rows, num_words)}")
        return num_rows, num_columns

    def _scheme(self, module: str, shape: tuple[int, int], parts: Parts, num_groups: int) -> _Scheme:
        """The first of the config's that the tensors can be of."""
        num_columns = shape[1]
        for scheme in self._schemes:
            if "weight_packed" in parts and parts["weight_packed"].shape[1] != -(-num_columns * scheme.bits // 32):
                continue
            if (scheme.group_size or num_columns) * num_groups != num_columns:
                continue
            if scheme.is_symmetric or "weight_zero_point" in parts:
                return scheme
        raise wrong_part(module, "tensors", f"{num_groups} groups of {num_columns} inputs")

    def _groups(self, module: str, num_columns: int, num_groups: int, given: torch.Tensor | None) -> torch.Tensor:
        size = num_columns // num_groups
        usual = equal_groups(num_columns, size)
        if given is None or (given == -1).any():  # -1 is what an order has before it is known
            return usual
        groups = given.long()
        if not torch.equal(groups.sort().values, usual):
            raise wrong_part(module, "weight_g_idx", f"an order that does not have {size} inputs of each group")
        return groups


def _group_size(weights: Mapping[str, Any]) -> int | None:
    size = weights.get("group_size")
    return size if isinstance(size, int) and size > 0 else None


def _by_row(values: torch.Tensor, num_rows: int) -> torch.Tensor:
    """(), (1,), (1, 1), (J,) or (J, G) -> (J, G)"""
    columns = values if values.ndim == 2 else values.reshape(-1, 1)
    return columns.expand(num_rows, -1)
