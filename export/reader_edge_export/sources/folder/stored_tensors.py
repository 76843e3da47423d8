"""The tensors in a folder's safetensors files: their shapes and types from the headers, their values one at a time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reader_edge_export.sources.folder.weight_files import shard_of_tensors, weight_files
from reader_edge_runtime.errors import ExportError

if TYPE_CHECKING:
    import torch

_COMPARED_AT_ONCE = 1 << 24  # numbers of a tensor
_LAYOUTS = ("pt", "mlx")  # that a file's metadata names; MLX has PyTorch's


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, which is as large as its shape and type say. dtype: as safetensors calls it, e.g. "F16"."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    def read(self) -> "torch.Tensor":
        """Its values, as stored. Raises ExportError where the file has changed."""
        return self._taken(lambda file: file.get_tensor(self.name))

    def read_rows(self, parts: Sequence[slice]) -> "torch.Tensor":
        """Some of its rows, in runs, likewise."""
        import torch

        def take(file: Any) -> torch.Tensor:
            rows = file.get_slice(self.name)
            return torch.cat([rows[part] for part in parts])

        return self._taken(take)

    def read_part(self, index: int) -> "torch.Tensor":
        """One of its parts along the first axis, likewise."""
        return self._taken(lambda file: file.get_slice(self.name)[index])

    def _taken(self, take: Callable[[Any], "torch.Tensor"]) -> "torch.Tensor":
        from safetensors import SafetensorError, safe_open

        with safe_open(self.file, framework="pt") as file:
            try:
                return take(file)
            except SafetensorError:
                raise ExportError(
                    f"'{self.file}' changed while it was read: export it again when it is whole."
                ) from None

    def equals(self, other: "StoredTensor") -> bool:
        """Whether another tensor has the same values, of whatever type; a few rows of both are read at a time."""
        from safetensors import safe_open

        if self.shape != other.shape:
            return False
        num_at_once = max(1, _COMPARED_AT_ONCE // max(1, math.prod(self.shape[1:])))
        with safe_open(self.file, framework="pt") as file, safe_open(other.file, framework="pt") as other_file:
            one, two = file.get_slice(self.name), other_file.get_slice(other.name)
            starts = range(0, self.shape[0] if self.shape else 0, num_at_once)
            rows = (slice(start, start + num_at_once) for start in starts)
            return all(bool((one[part].float() == two[part].float()).all()) for part in rows)


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """A folder's tensors by name. Nothing is read but headers, whose sizes the library compares with the files.

    Raises ExportError for a broken file, a tensor that is stored twice, and one that the index names but no file
    holds.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(folder):
        for tensor in _tensors_of(path):
            if tensor.name in tensors:
                raise ExportError(f"'{folder}' holds {tensor.name} in two files: fetch the model again.")
            tensors[tensor.name] = tensor
    for name, shard in shard_of_tensors(folder).items():
        if name not in tensors:
            raise ExportError(f"'{folder / shard}' lacks {name!r:.80}, which its index names: fetch the model again.")
    return tensors


def _tensors_of(path: Path) -> list[StoredTensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            _check_layout(path, (file.metadata() or {}).get("format"))
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return [
                StoredTensor(name, path, tuple(each.get_shape()), str(each.get_dtype()))
                for name, each in slices.items()
            ]
    except SafetensorError as error:
        reason = (str(error).strip() or "broken").splitlines()[0]
        raise ExportError(f"The weights in '{path}' cannot be loaded: {reason:.200}; fetch the model again.") from None


def _check_layout(path: Path, layout: str | None) -> None:
    """Raise ExportError where a file was saved by another library than PyTorch, which orders dimensions otherwise."""
    if layout not in (None, *_LAYOUTS):
        raise ExportError(
            f"'{path}' holds weights in the layout {layout!r:.40}, of which {', '.join(_LAYOUTS)} are read: save the "
            "model with PyTorch (AutoModelForCausalLM.from_pretrained(...).save_pretrained(...))."
        )
