"""The file of weights of a graph that is written already: another graph beside it refers to what both have."""

from pathlib import Path
from typing import IO

import onnx_ir as ir

_MIN_BYTES = 1 << 14  # smaller ones are not worth the search
_CHUNK = 1 << 24


class OtherWeights:
    """path: of the file that holds the weights of a graph."""

    def __init__(self, graph: Path, path: Path) -> None:
        self.path = path
        self._offsets: dict[int, list[int]] = {}
        for value in ir.load(graph).graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes >= _MIN_BYTES:
                self._offsets.setdefault(tensor.nbytes, []).append(tensor.offset or 0)

    def offset_of(self, file: IO[bytes], offset: int, num_bytes: int) -> int | None:
        """Where the file has a tensor of the bytes that lie at an offset of another one; None where it has none."""
        with self.path.open("rb", buffering=0) as own:
            places = self._offsets.get(num_bytes, ())
            return next((each for each in places if _are_alike(own, each, file, offset, num_bytes)), None)


def _are_alike(own: IO[bytes], own_offset: int, other: IO[bytes], offset: int, num_bytes: int) -> bool:
    """Leaves the other one's position where it was: at its end."""
    own.seek(own_offset)
    other.seek(offset)
    while num_bytes:
        size = min(num_bytes, _CHUNK)
        if own.read(size) != other.read(size):
            break
        num_bytes -= size
    other.seek(0, 2)
    return not num_bytes
