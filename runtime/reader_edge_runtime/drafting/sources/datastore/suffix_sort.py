"""Suffix sorting of token streams, by libdivsufsort (Mori), which sorts bytes; of short ones by numpy alone."""

from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.errors import InstallationError

# libdivsufsort's 32-bit form; beyond it a token would cost twice the memory.
_MAX_TEXT_BYTES = 2**31 - 1
_CHUNK = 1 << 22
# Up to here no library is needed.
_MAX_SHORT = 1 << 16


def max_sortable(token_bytes: int) -> int:
    """Positions that can be sorted at once."""
    return _MAX_TEXT_BYTES // _bytes_sorted(token_bytes)


def sort_bytes_per_position(token_bytes: int) -> int:
    """Memory a sort takes for each position, the stream itself not counted."""
    return 5 * _bytes_sorted(token_bytes)


def sort_suffixes(stream: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Positions of a stream of uint16 ids, or uint32 ids below 2**24 - 1, in the order of the suffixes they begin.

    The type's highest value may occur too, as an end mark that is above all ids. Raises InstallationError.
    """
    if len(stream) <= _MAX_SHORT:
        return _sort_short(stream)
    divsufsort = _load_divsufsort()
    width = _bytes_sorted(stream.itemsize)
    # Big-endian bytes order like the numbers they are, so the suffixes that begin at whole ids come out in order.
    big_endian = stream.astype(stream.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, stream.itemsize)
    text = np.ascontiguousarray(big_endian[:, stream.itemsize - width :]).reshape(-1)
    del big_endian
    found: npt.NDArray[np.int32] = divsufsort(text)
    del text
    num = 0
    for start in range(0, len(found), _CHUNK):  # in place: a second array of this size would be the peak of a build
        part = found[start : start + _CHUNK]
        kept = part[part % width == 0] // width
        found[num : num + len(kept)] = kept
        num += len(kept)
    return found[:num].view(np.uint32)


def _sort_short(stream: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """By prefix doubling (Manber and Myers, "Suffix arrays", 1993): ranks by n tokens give those by 2 n."""
    rank = np.unique(stream, return_inverse=True)[1] + 1
    length = 1
    while len(stream) and rank.max() < len(stream):
        following = np.zeros_like(rank)
        following[:-length] = rank[length:]
        rank = np.unique(rank * (len(stream) + 1) + following, return_inverse=True)[1] + 1
        length *= 2
    return np.argsort(rank).astype(np.uint32)


def _bytes_sorted(token_bytes: int) -> int:
    """Ids of four bytes are below 2**24: their first byte would only cost memory."""
    return min(token_bytes, 3)


def _load_divsufsort() -> Any:
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        raise InstallationError(
            "Building a datastore needs pydivsufsort: install it with pip install 'reader-edge[datastore]'."
        ) from None
    return divsufsort
