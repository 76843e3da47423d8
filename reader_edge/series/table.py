"""Tables of series: a column of times, if there is one, and a column of numbers for each series; CSV or Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as midnight
from pathlib import Path
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.errors import InstallationError, SeriesError
from reader_edge_runtime.series.forecast import Forecast

SUFFIXES = (".csv", ".parquet")

_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """times: of each row, equally apart; None without a column of them. series: values by name, gaps as NaN.

    left_out: columns that hold no numbers.
    """

    times: list[datetime] | None
    series: dict[str, Float64Array]
    left_out: tuple[str, ...] = ()

    @property
    def step(self) -> timedelta | None:
        """Between two rows."""
        return self.times[1] - self.times[0] if self.times is not None and len(self.times) > 1 else None

    def coming(self, horizon: int) -> list[datetime] | list[int]:
        """The times behind the last row; their numbers where there are none."""
        if self.times is None or self.step is None:
            return list(range(1, horizon + 1))
        return [self.times[-1] + number * self.step for number in range(1, horizon + 1)]


def read_table(path: Path, time_column: str | None, columns: Sequence[str]) -> SeriesTable:
    """time_column: None takes the first column of times. columns: of series; none takes all of numbers.

    Raises SeriesError for a file that is no table or lacks a column, InstallationError without pyarrow.
    """
    found = _read(path)
    for name in (*columns, *([] if time_column is None else [time_column])):
        if found.column_names.count(name) != 1:
            there = ", ".join(found.column_names[:8])
            raise SeriesError(f"'{path}' has no one column {name!r:.80}, but {there:.200}: name one of these.")
    if len(set(found.column_names)) < found.num_columns:
        raise SeriesError(f"'{path}' has two columns of one name: rename one of them.")
    kinds = {field.name: _kind(field.type) for field in found.schema}
    if time_column is None:
        time_column = next((name for name, kind in kinds.items() if kind == "time"), None)
    elif kinds[time_column] != "time":
        raise SeriesError(f"Column {time_column!r:.80} of '{path}' has no times: write them as 2026-01-31 23:00:00.")
    others = [name for name in kinds if name != time_column]
    names = list(columns) or [name for name in others if kinds[name] == "number"]
    if wrong := [name for name in names if kinds[name] != "number"]:
        raise SeriesError(f"Column {wrong[0]!r:.80} of '{path}' holds no numbers: name another one.")
    if not names:
        raise SeriesError(f"'{path}' has no column of numbers: give a table with a column for each series.")
    times = None if time_column is None else _times(found.column(time_column).to_pylist(), path)
    left_out = () if columns else tuple(name for name in others if name not in names)
    return SeriesTable(times, {name: _values(found.column(name)) for name in names}, left_out)


def check_output(path: Path | None) -> None:
    """Raise SeriesError, before the work, for a name of no kind of table or in no folder."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise SeriesError(f"'{path}' names no kind of table: end it in {' or '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise SeriesError(f"There is no folder '{path.parent}' for the forecast: make it first.")


def forecast_columns(table: SeriesTable, forecast: Forecast, levels: Sequence[float]) -> dict[str, list[Any]]:
    """A row for each series and time: mean and quantiles."""
    horizon = forecast.paths.shape[2]
    quantiles = forecast.quantiles(levels)
    columns: dict[str, list[Any]] = {
        "time" if table.step is not None else "step": table.coming(horizon) * len(forecast.names),
        "series": [name for name in forecast.names for _ in range(horizon)],
        "mean": forecast.mean().reshape(-1).tolist(),
    }
    return columns | {f"q{level:g}": quantiles[:, number].reshape(-1).tolist() for number, level in enumerate(levels)}


def write_table(columns: dict[str, list[Any]], path: Path) -> None:
    """By the file's name. Raises SeriesError."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        with new_file(path) as file:
            write = parquet.write_table if path.suffix == ".parquet" else csv.write_csv
            write(pa.table(columns), file)
    except OSError as error:
        raise SeriesError(write_failure(path, error)) from error


def _read(path: Path) -> Any:
    try:
        from pyarrow import csv, parquet
    except ModuleNotFoundError:
        raise InstallationError("Tables need pyarrow: pip install 'reader-edge[series]'.") from None
    if path.suffix not in SUFFIXES:
        raise SeriesError(f"'{path}' names no kind of table: give one that ends in {' or '.join(SUFFIXES)}.")
    if path.stat().st_size > _MAX_BYTES:
        raise SeriesError(f"'{path}' has more than {_MAX_BYTES >> 30} GiB: give the last part of it.")
    try:
        return parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SeriesError(f"'{path}' cannot be read as a table ({reason:.120}): correct it first.") from None


def _kind(column_type: Any) -> str:
    from pyarrow import types

    if types.is_timestamp(column_type) or types.is_date(column_type):
        return "time"
    is_number = types.is_integer(column_type) or types.is_floating(column_type) or types.is_decimal(column_type)
    return "number" if is_number or types.is_null(column_type) else "other"


def _values(column: Any) -> Float64Array:
    return np.array([np.nan if value is None else float(value) for value in column.to_pylist()])


def _times(values: list[Any], path: Path) -> list[datetime]:
    """Raises SeriesError unless they are equally apart."""
    times: list[datetime] = []
    for row, value in enumerate(values, start=1):
        if value is None:
            raise SeriesError(f"Row {row} of '{path}' has no time: give it one, or leave the row out.")
        times.append(value if isinstance(value, datetime) else datetime.combine(value, midnight()))
    for row in range(2, len(times)):
        step, first = times[row] - times[row - 1], times[1] - times[0]
        if step != first or first <= timedelta():
            raise SeriesError(
                f"Row {row + 1} of '{path}' is of {times[row]}, {step} behind the row before, where others are {first} "
                "apart: fill gaps and sort the rows first, or leave out the column of times."
            )
    return times
