"""AWQ, as AutoAWQ writes it: zero points as they are, and codes in the order that its kernels unpack.

GEMM: qweight int32 (K, J bits/32) and qzeros int32 (G, J bits/32) are packed along the outputs, interleaved;
scales (G, J). GEMV: qweight int32 (J, K/8) and qzeros int32 (J, W) are packed along the inputs, in order; scales
(J, 8 W), the groups that are too many left empty. Source: AutoAWQ, awq/modules/linear/gemm.py and gemv.py.
Matrices of eight bits come from GPTQModel, which leaves them in order, or in the order that vLLM reads.
"""

from collections.abc import Mapping
from typing import Any

import torch

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
from reader_edge_runtime.errors import UnsupportedArchitectureError

# Of the codes in a word, lowest bits first: which output each is.
_ORDER = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}
_IN_ORDER = {4: tuple(range(8)), 8: tuple(range(4))}
_GEMM_LIKE = ("gemm", "exllama", "ipex")  # the last two rearrange a GEMM file once it is loaded


def awq_packing(settings: Mapping[str, Any]) -> Packing:
    """The layout that a config names. Raises UnsupportedArchitectureError for those of other kernels."""
    names = (settings.get(key) for key in ("checkpoint_format", "format", "version"))
    form = next((name.lower() for name in names if isinstance(name, str)), "gemm")
    bits: int = settings.get("bits", settings.get("w_bit"))
    group_size: int = settings.get("group_size", settings.get("q_group_size")) or -1
    if settings.get("backend", "autoawq") == "autoawq":
        if form in _GEMM_LIKE:
            meta = settings.get("meta")
            is_in_order = bits == 8 and "gptqmodel" in str(meta.get("quantizer") if isinstance(meta, dict) else None)
            return AwqGemm(bits, group_size, (_IN_ORDER if is_in_order else _ORDER)[bits])
        if form == "gemv" and bits == 4:
            return AwqGemv(group_size)
    raise UnsupportedArchitectureError(
        f"The weights were quantised with AWQ in the layout {form!r:.40} ({bits} bits), of which gemm and gemv "
        "(4 bits) are read: give a model in one of these."
    )


class AwqGemm(Packing):
    """order: of the codes in a word, which output each is."""

    parts = ("qweight", "qzeros", "scales")
    markers = ("qweight",)

    def __init__(self, bits: int, group_size: int, order: tuple[int, ...]) -> None:
        self._bits = bits
        self._group_size = group_size
        self._order = torch.tensor(order).argsort()

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        num_inputs, num_words = part(module, parts, "qweight", ("I32",))
        num_outputs = num_words * 32 // self._bits
        num_groups, _ = part(module, parts, "scales", FLOATS)
        size = self._group_size if self._group_size > 0 else num_inputs
        if parts["scales"].shape != (num_groups, num_outputs) or num_groups * size != num_inputs:
            raise wrong_part(module, "scales", f"the shape {parts['scales'].shape}")
        if part(module, parts, "qzeros", ("I32",)) != (num_groups, num_words):
            raise wrong_part(module, "qzeros", f"the shape {parts['qzeros'].shape}")
        return num_outputs, num_inputs

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Codes:
        codes, zeros = (self._in_order(unpacked(values[name], self._bits)) for name in ("qweight", "qzeros"))
        groups = equal_groups(shape[1], shape[1] // len(zeros))
        return Codes(codes.T.contiguous(), zeros.T, values["scales"].T, groups)

    def _in_order(self, codes: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = codes.reshape(len(codes), -1, len(self._order))
        return words[..., self._order].flatten(1)


class AwqGemv(Packing):
    parts = ("qweight", "qzeros", "scales")
    markers = ("qweight",)

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        num_outputs, num_words = part(module, parts, "qweight", ("I32",))
        num_inputs = num_words * 8
        size = self._group_size if self._group_size > 0 else num_inputs
        num_zeros = part(module, parts, "qzeros", ("I32",))[1]
        if parts["qzeros"].shape[0] != num_outputs or num_inputs % size or num_zeros * 8 < num_inputs // size:
            raise wrong_part(module, "qzeros", f"the shape {parts['qzeros'].shape}")
        if part(module, parts, "scales", FLOATS) != (num_outputs, num_zeros * 8):
            raise wrong_part(module, "scales", f"the shape {parts['scales'].shape}")
        return num_outputs, num_inputs

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Codes:
        size = self._group_size if self._group_size > 0 else shape[1]
        num_groups = shape[1] // size
        scales = values["scales"]
        if scales[:, num_groups:].any() or not scales[:, num_groups - 1].any():
            raise wrong_part(module, "scales", f"other groups than of {size} inputs, as its config says")
        zeros = unpacked(values["qzeros"], 4)[:, :num_groups]
        return Codes(unpacked(values["qweight"], 4), zeros, scales[:, :num_groups], equal_groups(shape[1], size))
