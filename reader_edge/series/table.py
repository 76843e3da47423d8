"""Tables of series: a column of times, if there is one, and a column of numbers for each series; CSV or Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.errors import InstallationError, SeriesError
from reader_edge_runtime.outside.plain_file import check_plain_file
from reader_edge_runtime.series.forecast import Forecast

SUFFIXES = (".csv", ".parquet")

_MAX_BYTES = 1 << 30
_MOST_VALUES = 1 << 27  # of a Parquet file, which a few bytes may declare


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

    def check_horizon(self, horizon: int) -> None:
        """Raise SeriesError, before the work, where times to come are none that a calendar has."""
        if self.times is not None and self.step is not None:
            try:
                self.times[-1] + horizon * self.step
            except OverflowError:
                raise SeriesError(
                    f"{horizon} steps of {self.step} behind {self.times[-1]} lead beyond the year 9999: give a shorter "
                    "horizon, or leave out the column of times."
                ) from None

    def coming(self, horizon: int) -> list[datetime] | list[int]:
        """The times behind the last row; their numbers where there are none."""
        if self.times is None or self.step is None:
            return list(range(1, horizon + 1))
        return [self.times[-1] + number * self.step for number in range(1, horizon + 1)]


def read_table(path: Path, time_column: str | None, columns: Sequence[str]) -> SeriesTable:
    """time_column: None takes the first column of times. columns: of series; none takes all of numbers.

    Raises SeriesError for a file that is no table or lacks a column, InstallationError without pyarrow.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise InstallationError("Tables need pyarrow: pip install 'reader-edge[series]'.") from None
    if path.suffix not in SUFFIXES:
        raise SeriesError(f"'{path}' names no kind of table: give one that ends in {' or '.join(SUFFIXES)}.")
    check_plain_file(path, SeriesError, "give a table in a file")
    if path.stat().st_size > _MAX_BYTES:
        raise SeriesError(f"'{path}' has more than {_MAX_BYTES >> 30} GiB: give the last part of it.")
    try:
        return _read(path, time_column, columns)
    except (OSError, ValueError, KeyError, OverflowError, MemoryError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SeriesError(f"'{path}' cannot be read as a table ({reason:.120}): correct it first.") from None


def check_output(path: Path | None, table: Path) -> None:
    """Raise SeriesError, before the work, for a name of no kind of table, in no folder, or of the table itself."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise SeriesError(f"'{path}' names no kind of table: end it in {' or '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise SeriesError(f"There is no folder '{path.parent}' for the forecast: make it first.")
    check_apart(path, table)


def check_apart(path: Path, table: Path) -> None:
    """Raise SeriesError where what is written at `path` would replace the table that is read."""
    if path.exists() and path.samefile(table):
        raise SeriesError(f"'{path}' is the table that is forecast: name another file to write.")


def forecast_columns(table: SeriesTable, forecast: Forecast, levels: Sequence[float]) -> dict[str, list[Any]]:
    """A row for each series and time: mean and quantiles."""
    horizon = forecast.paths.shape[2]
    quantiles = forecast.quantiles(levels)
    columns: dict[str, list[Any]] = {
        "time" if table.step is not None else "step": table.coming(horizon) * len(forecast.names),
        "series": [name for name in forecast.names for _ in range(horizon)],
        "mean": forecast.mean().reshape(-1).tolist(),
    }
    return columns | {_header(level): quantiles[:, number].reshape(-1).tolist() for number, level in enumerate(levels)}


def _header(level: float) -> str:
    """As short as tells it from all others."""
    return f"q{np.format_float_positional(level, trim='-')}"


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


def _read(path: Path, time_column: str | None, columns: Sequence[str]) -> SeriesTable:
    """Of a Parquet file, no other columns than are wanted."""
    from pyarrow import csv, parquet

    is_parquet = path.suffix == ".parquet"
    found: Any = parquet.ParquetFile(path) if is_parquet else csv.read_csv(path)
    schema = found.schema_arrow if is_parquet else found.schema
    for name in (*columns, *([] if time_column is None else [time_column])):
        if schema.names.count(name) != 1:
            there = ", ".join(schema.names[:8])
            raise SeriesError(f"'{path}' has no one column {name!r:.80}, but {there:.200}: name one of these.")
    if len(set(schema.names)) < len(schema.names):
        raise SeriesError(f"'{path}' has two columns of one name: rename one of them.")
    kinds = {field.name: _kind(field.type) for field in schema}
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
    if is_parquet:
        _check_size(found.metadata, path)
        found = found.read(columns=[*names, *([] if time_column is None else [time_column])])
    times = None if time_column is None else _times(found.column(time_column), path)
    left_out = () if columns else tuple(name for name in others if name not in names)
    return SeriesTable(times, {name: _values(found.column(name)) for name in names}, left_out)


def _check_size(metadata: Any, path: Path) -> None:
    """Raise SeriesError for more values than a table may have, by rows or by what any part of the file declares."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    declared = sum(abs(group.column(number).num_values) for group in groups for number in range(group.num_columns))
    num_values = max(declared, metadata.num_rows * metadata.num_columns)
    if num_values > _MOST_VALUES:
        raise SeriesError(
            f"'{path}' declares {num_values} values, more than the {_MOST_VALUES} that a table may have: give the last "
            "part of it."
        )


def _kind(column_type: Any) -> str:
    from pyarrow import types

    if types.is_timestamp(column_type) or types.is_date(column_type):
        return "time"
    is_number = types.is_integer(column_type) or types.is_floating(column_type) or types.is_decimal(column_type)
    return "number" if is_number or types.is_null(column_type) else "other"


def _values(column: Any) -> Float64Array:
    values: Float64Array = column.cast("float64", safe=False).to_numpy()
    return values


def _times(column: Any, path: Path) -> list[datetime]:
    """Raises SeriesError unless they are equally apart."""
    import pyarrow as pa

    zone = getattr(column.type, "tz", None)
    try:
        if zone is not None:
            pa.lib.string_to_tzinfo(zone)
    except (ValueError, KeyError):
        raise SeriesError(f"The times of '{path}' are of zone {zone!r:.80}, unknown here: write them in UTC.") from None
    times = column.cast(pa.timestamp("us", zone)).to_pylist()
    if None in times:
        raise SeriesError(f"Row {times.index(None) + 1} of '{path}' has no time: give it one, or leave the row out.")
    for row in range(2, len(times)):
        step, first = times[row] - times[row - 1], times[1] - times[0]
        if step != first or first <= timedelta():
            raise SeriesError(
                f"Row {row + 1} of '{path}' is of {times[row]}, {step} behind the row before, where others are {first} "
                "apart: fill gaps and sort the rows first, or leave out the column of times."
            )
    return list(times)
