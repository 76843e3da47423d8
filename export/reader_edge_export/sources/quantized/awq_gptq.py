"""AWQ, as AutoAWQ writes it, and GPTQ, as AutoGPTQ and GPTQModel write it: int32 words of codes."""

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
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError

# Of the codes in a word, lowest bits first: which output each is.
_ORDER = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}
_IN_ORDER = {4: tuple(range(8)), 8: tuple(range(4))}
_GEMM_LIKE = ("gemm", "exllama", "ipex")  # the last two rearrange a GEMM file once it is loaded
_ONES = {4: 0x11111111, 8: 0x01010101}  # one in every code of a word
_FORMATS = ("gptq", "gptq_v2")


def awq_packing(settings: Mapping[str, Any]) -> Packing:
    """The layout that a config names. Raises UnsupportedArchitectureError for those of other kernels."""
    names = (settings.get(key) for key in ("checkpoint_format", "format", "version"))
    layout = next((name.lower() for name in names if isinstance(name, str)), "gemm")
    bits: int = settings.get("bits", settings.get("w_bit"))
    group_size: int = settings.get("group_size", settings.get("q_group_size")) or -1
    if settings.get("backend", "autoawq") == "autoawq":
        if layout in _GEMM_LIKE:
            meta = settings.get("meta")
            is_in_order = bits == 8 and "gptqmodel" in str(meta.get("quantizer") if isinstance(meta, dict) else None)
            return AwqGemm(bits, group_size, (_IN_ORDER if is_in_order else _ORDER)[bits])
        if layout == "gemv" and bits == 4:
            return AwqGemv(group_size)
    raise UnsupportedArchitectureError(
        f"The weights were quantised with AWQ in the layout {layout!r:.40} ({bits} bits), of which gemm and gemv "
        "(4 bits) are read: give a model in one of these."
    )


class AwqGemm(Packing):
    """qweight int32 (K, J bits/32) and qzeros int32 (G, J bits/32), packed along the outputs; scales (G, J).

    Source: AutoAWQ, awq/modules/linear/gemm.py. Matrices of eight bits come from GPTQModel, which leaves them in order,
    or in the order that vLLM reads. order: of the codes in a word, which output each is.
    """

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
    """qweight int32 (J, K/8) and qzeros int32 (J, W), packed along the inputs; scales (J, 8 W), the groups that are too
    many left empty. Source: AutoAWQ, awq/modules/linear/gemv.py.
    """

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


class Gptq(Packing):
    """qweight int32 (K bits/32, J), packed along the inputs. qzeros int32 (G, J bits/32), along the outputs.

    In format "gptq" zero points are one less than they are. scales (G, J). g_idx int32 (K,): the group of each input,
    in any order with `desc_act`. Source: gptqmodel/nn_modules/qlinear (dequantize_weight) and utils/model.py.
    Raises UnsupportedArchitectureError for layouts of other kernels.
    """

    parts = ("qweight", "qzeros", "scales", "g_idx")
    markers = ("qweight",)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        layout = settings.get("checkpoint_format") or settings.get("format") or "gptq"
        if layout not in _FORMATS or settings.get("is_marlin_format"):
            raise UnsupportedArchitectureError(
                f"The weights were quantised with GPTQ in the layout {layout!r:.40}, of which {', '.join(_FORMATS)} "
                "are read: save them in one of these."
            )
        self._has_less_by_one = layout == "gptq"
        self._bits: int = settings["bits"]
        self._group_size: int = settings.get("group_size") or -1
        self._is_ordered = bool(settings.get("desc_act")) or bool(settings.get("static_groups"))
        self._is_symmetric = settings.get("sym") is True
        self._is_mixed = bool(settings.get("dynamic"))  # other numbers of bits in some modules
        meta = settings.get("meta")
        self._borrows = "gptqmodel" in str(meta.get("quantizer") if isinstance(meta, dict) else None)

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        num_words, num_outputs = part(module, parts, "qweight", ("I32",))
        bits = self._bits_of(module, parts)
        num_inputs = num_words * 32 // bits
        num_groups, _ = part(module, parts, "scales", FLOATS)
        if parts["scales"].shape != (num_groups, num_outputs):
            raise wrong_part(module, "scales", f"the shape {parts['scales'].shape}")
        if "g_idx" in parts and part(module, parts, "g_idx", ("I32", "I64"), 1) != (num_inputs,):
            raise wrong_part(module, "g_idx", f"the shape {parts['g_idx'].shape}")
        if "g_idx" not in parts and self._is_ordered:
            raise ExportError(
                f"The quantised matrix {module!r:.80} lacks its g_idx, the order of its inputs: fetch it."
            )
        size = self._size_of_group(num_inputs)
        if not self._is_mixed and -(-num_inputs // size) != num_groups:
            raise wrong_part(module, "scales", f"{num_groups} groups of {num_inputs} inputs")
        return num_outputs, num_inputs

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Codes:
        words, zero_words, scales = values["qweight"], values["qzeros"], values["scales"]
        bits = words.shape[0] * 32 // shape[1]
        return Codes(
            unpacked(words.T, bits),
            self._zeros(module, zero_words, bits).T,
            scales.T,
            self._groups(module, shape[1], len(scales), values.get("g_idx")),
        )

    def _bits_of(self, module: str, parts: Parts) -> int:
        num_outputs = parts["qweight"].shape[1]
        num_groups, num_words = part(module, parts, "qzeros", ("I32",))
        bits = num_words * 32 // num_outputs
        is_known = bits in _ONES if self._is_mixed else bits == self._bits
        if not is_known or num_words * 32 != bits * num_outputs or num_groups != parts["scales"].shape[0]:
            raise wrong_part(module, "qzeros", f"the shape {parts['qzeros'].shape}")
        return bits

    def _size_of_group(self, num_inputs: int) -> int:
        return self._group_size if 0 < self._group_size < num_inputs else num_inputs

    def _zeros(self, module: str, words: torch.Tensor, bits: int) -> torch.Tensor:
        """(G, J). Where a stored one is all ones, what one more is depends on the tool: 0, 2 ** bits or a carry."""
        if self._has_less_by_one:
            if not self._borrows and (unpacked(words, bits) == 2**bits - 1).any():
                raise ExportError(
                    f"The quantised matrix {module!r:.80} has zero points of nought, which the format 'gptq' cannot "
                    "hold without doubt: save it as 'gptq_v2', or give another model."
                )
            words = words + _ONES[bits]  # the whole word, as GPTQModel took it off: it borrows and carries alike
        zeros = unpacked(words, bits)
        if self._is_symmetric and not (zeros == 2 ** (bits - 1)).all():
            raise wrong_part(module, "qzeros", "zero points other than the middle of a symmetric format")
        return zeros

    def _groups(self, module: str, num_inputs: int, num_groups: int, given: torch.Tensor | None) -> torch.Tensor:
        size = -(-num_inputs // num_groups) if self._is_mixed else self._size_of_group(num_inputs)
        usual = equal_groups(num_inputs, size)
        if given is None:
            return usual
        groups = given.long()
        if int(groups.min()) < 0 or int(groups.max()) >= num_groups:
            raise wrong_part(module, "g_idx", f"groups from {int(groups.min())} to {int(groups.max())}")
        if not self._is_ordered and not torch.equal(groups, usual):
            raise wrong_part(module, "g_idx", "an order of inputs that its config denies (desc_act)")
        return groups
