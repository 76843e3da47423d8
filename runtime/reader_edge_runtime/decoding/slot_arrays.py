"""KV rows and recurrent states of a cache slot as named arrays, to save them to a file and check what is read back."""

from collections.abc import Mapping

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.cache import SlotContents, TextState

MAX_PLACES = 16  # of a text of recurrent layers


def arrays_of(contents: SlotContents, name: str) -> dict[str, Array]:
    """What a slot holds, as `contents_of` finds it. name: of the slot, within the file."""
    arrays: dict[str, Array] = {_rows_name(name, group): rows for group, rows in enumerate(contents.rows)}
    if contents.states:
        arrays[f"places/{name}"] = np.array([place.num_tokens for place in contents.states], np.int32)
    for number, place in enumerate(contents.states):
        for group, (states, pending) in enumerate(zip(place.states, place.pending, strict=True)):
            arrays[f"states/{name}/{number}/{group}"] = states
            arrays[f"pending/{name}/{number}/{group}"] = pending
    return arrays


def contents_of(arrays: Mapping[str, Array], name: str, length: int, like: SlotContents) -> SlotContents:
    """What a slot held of a text of so many tokens. like: what such a slot holds of no text; where that has no states,
    none are looked for. Raises KeyError or ValueError for what no pass could have written."""
    if not length:
        return like
    rows = tuple(arrays[_rows_name(name, group)] for group in range(len(like.rows)))
    for each, empty in zip(rows, like.rows, strict=True):
        _check(each, empty, (*empty.shape[:2], length, empty.shape[3]))
    return SlotContents(length, rows, _places(arrays, name, length, like.states[0]) if like.states else ())


def _places(arrays: Mapping[str, Array], name: str, length: int, like: TextState) -> tuple[TextState, ...]:
    """Where a text can be gone on from, at last at its end."""
    starts = arrays[f"places/{name}"]
    if starts.dtype != np.int32 or starts.ndim != 1 or not 0 < len(starts) <= MAX_PLACES:
        raise ValueError("its states are none")
    places = []
    for number, num_tokens in enumerate(starts.tolist()):
        groups = range(len(like.states))
        states, pending = (
            tuple(arrays[f"{kind}/{name}/{number}/{group}"] for group in groups) for kind in ("states", "pending")
        )
        num_pending = len(pending[0][0]) if pending[0].ndim == 3 and len(pending[0]) else 0
        for each, empty in zip(states, like.states, strict=True):
            _check(each, empty, empty.shape)
        for each, empty in zip(pending, like.pending, strict=True):
            _check(each, empty, (empty.shape[0], num_pending, empty.shape[2]))
        places.append(TextState(num_tokens, states, pending))
    if any(not 0 <= place.num_tokens <= place.end <= length for place in places) or places[-1].end != length:
        raise ValueError("its states are of another text")
    return tuple(places)


def _check(array: Array, like: Array, shape: tuple[int, ...]) -> None:
    if array.dtype != like.dtype or array.shape != shape:
        raise ValueError("its rows have another shape")
    if not all(map(_is_finite, array)):
        raise ValueError("its rows are not numbers")


def _rows_name(name: str, group: int) -> str:
    """The name of the array of a slot's rows in layers that are alike."""
    return f"rows/{name}/{group}" if group else f"rows/{name}"


def _is_finite(rows: Array) -> bool:
    """Whether numbers are finite; those of uint16 are the bits of bfloat16, and any of int8 are."""
    if rows.dtype == np.int8:
        return True
    return bool(np.all(rows & 0x7F80 != 0x7F80) if rows.dtype == np.uint16 else np.isfinite(rows).all())
