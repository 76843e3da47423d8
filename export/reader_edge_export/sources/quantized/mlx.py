"""MLX, as mlx-lm writes it: small numbers in a row of bits, with a scale and a bias for each group of a row's inputs.

weight: uint32 (J, K bits/32), the first number in the lowest bits, also across words. Mode "affine": scales and biases
(J, G), in whose type products and sums are rounded. "mxfp4", "mxfp8" and "nvfp4": scales uint8 (J, G), powers of two or
E4M3, and no biases. Experts are stacked: (X, J, K bits/32). config.json says mode, bits and group size of the model
and, by their paths, of modules that differ. Source: mlx/ops.cpp (affine_dequantize, fp_dequantize) and mlx_lm/utils.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reader_edge_export.sources.quantized.float_matrices import unpacked_e2m1
from reader_edge_export.sources.quantized.mlx_schemes import AFFINE, MXFP4, NVFP4, MlxScheme, mlx_schemes
from reader_edge_export.sources.quantized.packing import (
    CHUNK_VALUES,
    FLOATS,
    Codes,
    Content,
    Packing,
    Parts,
    Values,
    equal_groups,
    part,
    wrong_part,
)
from reader_edge_runtime.adapters.adapter import own_name


@dataclass(frozen=True, slots=True)
class _Affine:
    """words: uint32 (J, K bits/32). scales, biases: (J, G), in whose type the library computes."""

    words: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    bits: int

    def write_into(self, out: torch.Tensor) -> None:
        num_rows = max(1, CHUNK_VALUES // out.shape[1])
        for start in range(0, len(out), num_rows):
            rows = slice(start, start + num_rows)
            scales, biases = self.scales[rows].unsqueeze(-1), self.biases[rows].unsqueeze(-1)
            codes = _unpacked(self.words[rows], self.bits).to(scales.dtype).reshape(*scales.shape[:2], -1)
            out[rows] = (codes * scales + biases).flatten(1)


class Mlx(Packing):
    """settings: `quantization` of a config.json whose schemes are all read."""

    parts = ("weight", "scales", "biases")
    markers = ("scales", "biases")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # As modules are called here: paths may be those of a larger model.
        self._schemes = {own_name(f"{path}."): scheme for path, scheme in mlx_schemes(settings).items()}

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        scheme = self._scheme(module)
        num_rows, num_words = part(module, parts, "weight", ("U32",))
        size = part(module, parts, "scales", FLOATS if scheme.mode == AFFINE else ("U8",))
        num_columns = size[1] * scheme.group_size
        if size[0] != num_rows or num_columns * scheme.bits != num_words * 32:
            raise wrong_part(module, "scales", f"the shape {size}, for {scheme.bits} bits in {scheme.group_size}s")
        if scheme.mode != AFFINE:
            if "biases" in parts:
                raise wrong_part(module, "biases", f"what {scheme.mode} does not have")
        elif part(module, parts, "biases", (parts["scales"].dtype,)) != size:
            raise wrong_part(module, "biases", f"the shape {parts['biases'].shape}")
        return num_rows, num_columns

    def is_in_mxfp4(self, module: str, parts: Parts) -> bool:
        return self._scheme(module).mode == MXFP4

    def mxfp4_of(self, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
        return values["weight"].contiguous().view(torch.uint8), values["scales"]

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Content:
        scheme, words, scales = self._scheme(module), values["weight"], values["scales"]
        if scheme.mode == AFFINE:
            return _Affine(words, scales, values["biases"], scheme.bits)
        given = words.contiguous().view(torch.uint8)
        codes = unpacked_e2m1(given) if scheme.bits == 4 else given.view(torch.float8_e4m3fn)
        kind = torch.float8_e4m3fn if scheme.mode == NVFP4 else torch.float8_e8m0fnu
        return Codes(codes, None, scales.view(kind).float(), equal_groups(shape[1], scheme.group_size))

    def _scheme(self, module: str) -> MlxScheme:
        scheme = self._schemes.get(f"{module}.", self._schemes["."])
        assert scheme is not None
        return scheme


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint32 (R, W) -> int64 (R, K): eight numbers lie in as many bytes as one has bits."""
    octets = words.contiguous().view(torch.uint8).reshape(len(words), -1, bits).long()
    together = (octets << torch.arange(0, 8 * bits, 8)).sum(dim=-1, keepdim=True)
    codes: torch.Tensor = together >> torch.arange(0, 8 * bits, bits) & 2**bits - 1
    return codes.flatten(1)
