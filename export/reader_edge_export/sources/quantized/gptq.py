"""GPTQ, as AutoGPTQ and GPTQModel write it.

qweight int32 (K bits/32, J): columns packed along the inputs. qzeros int32 (G, J bits/32): zero points packed along the
outputs, in format "gptq" one less than they are. scales (G, J). g_idx int32 (K,): the group of each input, in any order
with `desc_act`. Source: gptqmodel/nn_modules/qlinear (dequantize_weight) and utils/model.py (convert_gptq_v1_to_v2).
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
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError

_ONES = {4: 0x11111111, 8: 0x01010101}  # one in every code of a word
_FORMATS = ("gptq", "gptq_v2")


class Gptq(Packing):
    """Raises UnsupportedArchitectureError for layouts of other kernels."""

    parts = ("qweight", "qzeros", "scales", "g_idx")
    markers = ("qweight",)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        form = settings.get("checkpoint_format") or settings.get("format") or "gptq"
        if form not in _FORMATS or settings.get("is_marlin_format"):
            raise UnsupportedArchitectureError(
                f"The weights were quantised with GPTQ in the layout {form!r:.40}, of which {', '.join(_FORMATS)} are "
                "read: save them in one of these."
            )
        self._has_less_by_one = form == "gptq"
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
