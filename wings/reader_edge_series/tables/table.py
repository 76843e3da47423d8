"""Tables of series: a column of times, if there is one, and a column of numbers for each series; CSV or Parquet."""

import csv
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.errors import ConfigError, InstallationError, SeriesError
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_series.checked_series import MOST_VALUES
from reader_edge_series.forecaster import Forecast
from reader_edge_series.tables.csv_text import check_first_lines, check_no_row_is_empty, check_words, first_days
from reader_edge_series.tables.row_times import RowTimes, row_times, step_name

SUFFIXES = (".csv", ".parquet")

_MAX_BYTES = 1 << 30
_MOST_VALUES = 1 << 26  # of a table, which a few bytes may declare
_MOST_COLUMNS = 1 << 15
_CHUNK = 1 << 20  # bytes: the header's line is shorter


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """times: None without a column of them, and of fewer than two rows. series: values by name, gaps as NaN.

    left_out: columns that hold no numbers.
    """

    times: RowTimes | None
    series: dict[str, Float64Array]
    left_out: tuple[str, ...] = ()

    def check_horizon(self, horizon: int) -> None:
        """Raise ConfigError, before the work, where times to come are none that a calendar has."""
        if self.times is not None:
            try:
                self.times.coming(horizon)
            except OverflowError:
                raise ConfigError(
                    f"{horizon} steps of {step_name(self.times.step)} behind {self.times.coming(0)} lead beyond the "
                    "year 9999: give a shorter horizon, or leave out the column of times."
                ) from None

    def coming(self, horizon: int, first: int = 1) -> list[datetime] | list[int]:
        """The times behind the last row, of which 0 is its own; their numbers where there are none."""
        numbers = list(range(first, horizon + 1))
        return numbers if self.times is None else [self.times.coming(number) for number in numbers]


def read_table(path: Path, time_column: str | None, columns: Sequence[str]) -> SeriesTable:
    """time_column: None takes the first column of times. columns: of series; none takes all of numbers.

    Raises ConfigError for a name of no kind of table and for a column that is none of numbers, SeriesError for a file
    that is no table, InstallationError without pyarrow.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise InstallationError("Tables need pyarrow: pip install 'reader-edge[series]'.") from None
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"'{path}' names no kind of table: give one that ends in {' or '.join(SUFFIXES)}.")
    check_plain_file(path, SeriesError, "give a table in a file")
    if path.stat().st_size > _MAX_BYTES:
        raise SeriesError(f"'{path}' has more than {_MAX_BYTES >> 30} GiB: give the last part of it.")
    try:
        return _read(path, time_column, columns)
    except (OSError, ValueError, KeyError, OverflowError, MemoryError, csv.Error, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SeriesError(f"'{path}' cannot be read as a table ({reason:.120}): correct it first.") from None


def check_output(path: Path | None, table: Path) -> None:
    """Raise ConfigError, before the work, for a name of no kind of table, or of the table itself."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"'{path}' names no kind of table: end it in {' or '.join(SUFFIXES)}.")
    check_apart(path, table)


def check_apart(path: Path, table: Path) -> None:
    """Raise ConfigError where what is written at `path` would replace the table that is read."""
    if path.exists() and path.samefile(table):
        raise ConfigError(f"'{path}' is the table that is forecast: name another file to write.")


def forecast_columns(table: SeriesTable, forecast: Forecast, levels: Sequence[float]) -> dict[str, list[Any]]:
    """A row for each series and time: mean and quantiles."""
    horizon = forecast.paths.shape[2]
    quantiles = forecast.quantiles(levels)
    columns: dict[str, list[Any]] = {
        "time" if table.times is not None else "step": table.coming(horizon) * len(forecast.names),
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
    from pyarrow.csv import write_csv
    from pyarrow.parquet import write_table as write_parquet

    try:
        with new_file(path) as file:
            write = write_parquet if path.suffix == ".parquet" else write_csv
            write(pa.table(columns), file)
    except OSError as error:
        raise SeriesError(write_failure(path, error)) from error


def _read(path: Path, time_column: str | None, columns: Sequence[str]) -> SeriesTable:
    """Of a Parquet file, no other columns than are wanted, one after the other."""
    from pyarrow import parquet

    is_parquet = path.suffix == ".parquet"
    found: Any = parquet.ParquetFile(path) if is_parquet else _read_csv(path, time_column, columns)
    time_name, names, left_out = _chosen(found.schema_arrow if is_parquet else found.schema, path, time_column, columns)
    if is_parquet:
        _check_size(path, *_parquet_size(found.metadata, {*names, *([] if time_name is None else [time_name])}))

    def column(name: str) -> Any:
        return (found.read(columns=[name]) if is_parquet else found).column(name)

    times = None if time_name is None else row_times(column(time_name), path)
    return SeriesTable(times, {name: _values(column(name)) for name in names}, left_out)


def _read_csv(path: Path, time_column: str | None, columns: Sequence[str]) -> Any:
    """The file as a table. Raises SeriesError where a row or a column of numbers would be lost."""
    from pyarrow.csv import read_csv

    num_lines, num_columns, num_values = _csv_size(path)
    _check_size(path, num_lines, num_columns, num_values)
    check_first_lines(path)
    found: Any = read_csv(path)
    if num_lines > found.num_rows + 1:
        check_no_row_is_empty(path)
    for number, (name, column) in enumerate(zip(found.column_names, found.columns, strict=True)):
        is_series, may_be_times = not columns or name in columns, time_column in (None, name)
        check_words(name, column, path, ["number"] * is_series + ["time"] * may_be_times)
        if may_be_times:
            found = found.set_column(number, name, first_days(column))
    return found


def _chosen(
    schema: Any, path: Path, time_column: str | None, columns: Sequence[str]
) -> tuple[str | None, list[str], tuple[str, ...]]:
    """The column of times, those of series, and what holds no numbers. Raises ConfigError and SeriesError."""
    for name in (*columns, *([] if time_column is None else [time_column])):
        if schema.names.count(name) != 1:
            there = ", ".join(schema.names[:8])
            raise ConfigError(f"'{path}' has no one column {name!r:.80}, but {there:.200}: name one of these.")
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
        raise ConfigError(f"Column {wrong[0]!r:.80} of '{path}' holds no numbers: name another one.")
    if not names:
        raise SeriesError(f"'{path}' has no column of numbers: give a table with a column for each series.")
    return time_column, names, () if columns else tuple(name for name in others if kinds[name] != "number")


def _check_size(path: Path, num_rows: int, num_columns: int, num_values: int) -> None:
    """Raise SeriesError, before they are read, for more than a table may have."""
    for number, most, what in (
        (num_columns, _MOST_COLUMNS, "columns"),
        (num_rows, MOST_VALUES, "rows"),
        (num_values, _MOST_VALUES, "values"),
    ):
        if number > most:
            raise SeriesError(
                f"'{path}' has {number} {what}, more than the {most} that a table may have: give a part of it."
            )


def _csv_size(path: Path) -> tuple[int, int, int]:
    """Rows, columns and values of a file at most, counted without reading them."""
    num_commas, num_rows = 0, 0
    with path.open("rb") as file:
        lines = file.read(_CHUNK).lstrip().splitlines()
        num_columns = lines[0].count(b",") + 1 if lines else 0
        file.seek(0)
        while chunk := file.read(_CHUNK):
            num_commas += chunk.count(b",")
            num_rows += max(chunk.count(b"\n"), chunk.count(b"\r"))
    return num_rows, num_columns, num_commas + num_rows


def _parquet_size(metadata: Any, names: Set[str]) -> tuple[int, int, int]:
    """Rows, columns and values of these columns, by rows or by what any part of the file declares."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    wanted = [number for number in range(metadata.num_columns) if metadata.schema.column(number).path in names]
    declared = sum(abs(group.column(number).num_values) for group in groups for number in wanted)
    return metadata.num_rows, metadata.num_columns, max(declared, metadata.num_rows * len(names))


def _kind(column_type: Any) -> str:
    from pyarrow import types

    if types.is_timestamp(column_type) or types.is_date(column_type):
        return "time"
    is_number = types.is_integer(column_type) or types.is_floating(column_type) or types.is_decimal(column_type)
    return "number" if is_number or types.is_null(column_type) else "other"


def _values(column: Any) -> Float64Array:
    values: Float64Array = column.cast("float64", safe=False).to_numpy()
    return values
