"""Checks a caller's series (a mapping or a data frame, each column one, oldest value first) and makes them float64."""

from collections.abc import Iterable
from datetime import date
from typing import Any, Protocol

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import SeriesError
from reader_edge_runtime.untrusted.user_input import short_repr

MOST_VALUES = 1 << 24  # of a series


class DataFrameLike(Protocol):
    """A dict of arrays, or a data frame of pandas or polars' `to_dict()`."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Names and values."""


def series_of(frame: DataFrameLike, least: int) -> dict[str, Float64Array]:
    """The series of a frame by their names. least: values that each needs. Columns of times are left out.

    Raises SeriesError for a frame of none, and for a series that cannot be forecast, with the place at fault.
    """
    if not hasattr(frame, "items"):
        given = short_repr(frame)
        raise SeriesError(f"The series are {given}: give a dict of arrays or a data frame, a column a series.")
    series = {
        str(name): checked_series(str(name), values, least) for name, values in frame.items() if not _is_times(values)
    }
    if not series:
        raise SeriesError("There is no series: give a dict of arrays or a data frame with a column of numbers.")
    return series


def checked_series(name: str, values: Any, least: int) -> Float64Array:
    """The values of a series as float64 (n,). Raises SeriesError."""
    try:
        array = np.asarray(values)
        array = array.astype(np.float64) if array.dtype.kind in "biufO" else np.zeros((0, 0))
    except (TypeError, ValueError):
        array = np.zeros((0, 0))
    if array.ndim != 1 or len(array) > MOST_VALUES:
        raise SeriesError(f"Series {short_repr(name)} is no column of numbers: leave it out, or give one value a time.")
    if (places := np.flatnonzero(np.isnan(array))).size:
        raise SeriesError(
            f"Series {short_repr(name)} has a gap at value {places[0] + 1} of {len(array)} ({places.size} in all): "
            "fill its gaps first, or give the part behind them."
        )
    if (places := np.flatnonzero(np.isinf(array) | (np.abs(array) > 1e100))).size:
        raise SeriesError(
            f"Series {short_repr(name)} has {array[places[0]]:g} as value {places[0] + 1}, which is not finite or "
            "beyond 1e100: correct it first."
        )
    if len(array) < least:
        raise SeriesError(
            f"Series {short_repr(name)} has {len(array)} values, but this model needs {least}: give a longer one."
        )
    return array


def _is_times(values: Any) -> bool:
    """Whether they are dates or times, in a zone or not."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        return False
    return array.dtype.kind == "M" or (array.dtype.kind == "O" and array.size > 0 and isinstance(array.flat[0], date))
