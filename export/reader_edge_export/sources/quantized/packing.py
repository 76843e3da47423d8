"""What the formats have in common: small numbers packed in words of 32 bits, and scales of groups of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_runtime.errors import ExportError

FLOATS = ("F16", "BF16", "F32")
CHUNK_VALUES = 1 << 22  # widened at once

Parts = Mapping[str, StoredTensor]
Values = Mapping[str, torch.Tensor]


class Content(Protocol):
    """What the parts of a matrix (J, K) say of its values."""

    def write_into(self, out: torch.Tensor) -> None:
        """Fill fp32 (J, K), which is contiguous."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix (J, K) of small numbers that belong to G groups: (codes - zeros) * scales.

    codes: uint8, int8 or float8_e4m3fn (J, K). zeros: integers (J, G), None for noughts. scales: (J, G). groups: int64
    (K,), the group of each column.
    """

    codes: torch.Tensor
    zeros: torch.Tensor | None
    scales: torch.Tensor
    groups: torch.Tensor

    def write_into(self, out: torch.Tensor) -> None:
        """Fill fp32 (J, K). A product is exact where a scale has 16 bits: 11 times 9 bits have room in 24."""
        num_rows = max(1, CHUNK_VALUES // max(1, out.shape[1]))
        for start in range(0, len(out), num_rows):
            rows = slice(start, start + num_rows)
            values = self.codes[rows].float()
            if self.zeros is not None:
                values -= self.zeros[rows].float()[:, self.groups]
            out[rows] = values * self.scales[rows].float()[:, self.groups]


class Packing(ABC):
    """How a format stores a matrix: in several tensors, named by the module and a part's name.

    parts: names of all parts. markers: those that show that a module is packed. unused: what is beside them for
    runtimes that round activations too, and says nothing about weights.
    """

    parts: ClassVar[tuple[str, ...]]
    markers: ClassVar[tuple[str, ...]]
    unused: ClassVar[tuple[str, ...]] = ()

    def place_of(self, name: str) -> tuple[str, str]:
        """The module and the part that a tensor's name tells; names of parts may have dots."""
        known = [part for part in self.parts if name.endswith(f".{part}")]
        part = max(known, key=len) if known else name.rpartition(".")[2]
        return name[: -len(part) - 1], part

    def parameter_of(self, module: str) -> str:
        """The name of a module's matrix."""
        return f"{module}.weight"

    def is_in_mxfp4(self, module: str, parts: Parts) -> bool:
        """Whether a module's matrix can stay as it is, in the blocks of GGUF's MXFP4."""
        return False

    def mxfp4_of(self, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
        """Such a matrix: its bytes (J, K/2), two codes each with the first in the low half, and exponents (J, K/32)."""
        raise AssertionError("not in MXFP4")

    @abstractmethod
    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        """(J, K) of a module's matrix, outputs first, by the shapes of its parts. Raises ExportError."""

    @abstractmethod
    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> Content:
        """A module's matrix. Raises ExportError where what the parts hold cannot be."""


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 (..., W) -> uint8 (..., W 32 / bits): a word's lowest bits first. bits: 4 or 8."""
    codes = words.reshape(-1).view(torch.uint8).reshape(*words.shape[:-1], -1)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    return codes


def part(
    module: str, parts: Parts, name: str, dtypes: Iterable[str], num_dimensions: int | None = 2
) -> tuple[int, ...]:
    """The shape of a part. Raises ExportError where it is missing, or of another type or number of dimensions.

    num_dimensions: None for any.
    """
    if name not in parts:
        raise ExportError(f"The quantised matrix {module!r:.80} lacks its {name}: fetch the model again.")
    tensor = parts[name]
    if tensor.dtype not in dtypes or num_dimensions not in (None, len(tensor.shape)) or 0 in tensor.shape:
        raise wrong_part(module, name, f"{tensor.dtype} of the shape {tensor.shape}")
    return tensor.shape


def wrong_part(module: str, name: str, found: str) -> ExportError:
    """One sentence about a part that cannot be."""
    return ExportError(
        f"The quantised matrix {module!r:.80} has {name} as {found}, which does not fit its other parts or its "
        "config: fetch the model again, or give another one."
    )


def equal_groups(num_columns: int, group_size: int) -> torch.Tensor:
    """The group of each column, int64 (K,), where groups are neighbours."""
    return torch.arange(num_columns) // group_size
