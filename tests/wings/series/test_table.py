"""Tables in and out: what is read, and one sentence for each way to be wrong."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from reader_edge_runtime.errors import ConfigError, SeriesError
from reader_edge_series.checked_series import MOST_VALUES
from reader_edge_series.forecaster import Forecast
from reader_edge_series.path_sampler import ForecastStats
from reader_edge_series.tables.table import check_output, forecast_columns, read_table, write_table

HOURS = [datetime(2026, 1, 1) + number * timedelta(hours=1) for number in range(5)]


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_times_and_columns_of_numbers_are_found(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table{suffix}"
    columns: dict[str, Iterable[object]] = {
        "place": ["x"] * 5,
        "at": HOURS,
        "one": [1.0, 2, None, 4, 5],
        "two": range(5),
    }
    write_table({name: list(values) for name, values in columns.items()}, path)
    table = read_table(path, None, ())
    assert table.left_out == ("place",)
    assert list(table.series) == ["one", "two"]
    np.testing.assert_array_equal(table.series["one"], [1, 2, np.nan, 4, 5])
    assert table.coming(2) == [HOURS[-1] + timedelta(hours=1), HOURS[-1] + timedelta(hours=2)]
    assert list(read_table(path, "at", ("two",)).series) == ["two"]


def test_days_are_times_and_rows_without_times_are_numbered(tmp_path: Path) -> None:
    days = read_table(_write(tmp_path / "a.csv", "day,x\n2026-01-01,1\n2026-01-02,2\n"), None, ())
    assert days.coming(1) == [datetime(2026, 1, 3)]
    assert read_table(_write(tmp_path / "b.csv", "x\n1\n2\n"), None, ()).coming(3) == [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "coming"),
    [
        (["2025-11", "2025-12"], "2026-01-01"),
        (["1950-Q1", "1950-Q2", "1950-Q3", "1950-Q4"], "1951-01-01"),
        (["2026Q1", "2026Q2"], "2026-07-01"),
    ],
)
def test_months_and_quarters_are_times_by_their_first_days(tmp_path: Path, names: list[str], coming: str) -> None:
    text = "x,period\n" + "".join(f"1,{name}\n" for name in names)
    table = read_table(_write(tmp_path / "a.csv", text), None, ())
    assert table.coming(1) == [datetime.fromisoformat(coming)]
    assert table.left_out == ()


def test_texts_that_only_look_like_months_are_left_out(tmp_path: Path) -> None:
    table = read_table(_write(tmp_path / "a.csv", "x,id,gap\n1,2025-13,\n2,2025-14,\n"), None, ())
    assert (table.times, table.left_out) == (None, ("id",))


@pytest.mark.parametrize(
    ("text", "time", "columns", "sentence"),
    [
        ("x,y\n1,2\n", None, ("z",), "no one column 'z'"),
        ("x,x\n1,2\n", None, (), "two columns of one name"),
        ("x,y\n1,2\n", "x", (), "'x' of .* has no times"),
        ("x,y\na,2\n", None, ("x",), "'x' of .* holds no numbers"),
        ("x\na\n", None, (), "no column of numbers"),
        ('m,x\n2026-01,1\n2026-Q2,2\n"",3\n2026-04,4\n', None, (), "Row 3 of column 'm' of .* is '', where others are"),
        ("m,x\n2026-01,1\n2026-02,2\n2026-04,4\n", None, (), "59 days later than .*, where others are 1 month apart"),
        (
            "at,x\n2026-01-01 01:00:00,1\n2026-01-01 02:00:00,2\n2026-01-01 02:15:00,3\n",
            None,
            (),
            "15 minutes later .* 1 hour",
        ),
        ("x\n1\n\n\n4\n\n", None, (), r"Row 2 of .* is empty \(2 in all\): fill gaps first"),
        ("x,y\r\n1,2\r\n\r\n3,4\r\n", None, (), "Row 2 of .* is empty"),
        ("0.0\n1\n2\n", None, (), r"begins with '0\.0', a value and no name of a column: put a line of names"),
        ("2026-01-01,4\n2026-01-02,5\n", None, (), "begins with '2026-01-01', a value"),
        ("x,y\n1,2\nmissing,3\n4,4\n5,5\n", None, (), r"Row 2 of column 'x' of .* is 'missing', where .* \(1 such"),
        (
            "t,x\n2026-01-01,1\n2026-01-02,2\nTotal,3\n",
            None,
            (),
            "Row 3 of column 't' of .* is 'Total', where .* times",
        ),
        ("t,x\n2026-01-01,1\n2026-01-02,2\nTotal,3\n", "t", ("x",), "is 'Total', where others are times"),
        ("t,x\n2026-01-01,1\n2026-01-02,2\nTotal,3\n", None, ("x",), "is 'Total', where others are times"),
        ("x;y\n1,5;2\n", None, (), "separated by ';': separate them by commas"),
        ("x\ty\n1\t2\n", None, (), "separated by tabs"),
        ("t,x\n2026-01-01,1\n,2\n", None, (), "Row 2 of .* has no time"),
        ("t,x\n2026-01-01,1\n2026-01-02,2\n2026-01-04,3\n", None, (), "Row 3 of .* where others are 1 day"),
        ("t,x\n2026-01-03,1\n2026-01-02,2\n2026-01-01,3\n", None, (), "sort the rows"),
        ("x,y\n1\n", None, (), "cannot be read as a table"),
        ("", None, (), "cannot be read as a table"),
    ],
)
def test_a_wrong_table_gets_a_sentence(
    tmp_path: Path, text: str, time: str | None, columns: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises((ConfigError, SeriesError), match=sentence):
        read_table(_write(tmp_path / "table.csv", text), time, columns)


@pytest.mark.parametrize(
    "text", ["\nx\n1\n2\n\n\n", 'y,x\n"a\n\nb",1\nc,2', "\ufeffx\r\n1\r\n2\r\n", "y,x\nmissing,1\n2,2\n"]
)
def test_empty_lines_around_rows_and_text_within_them_lose_nothing(tmp_path: Path, text: str) -> None:
    table = read_table(_write(tmp_path / "table.csv", text), None, ())
    assert {name: values.tolist() for name, values in table.series.items()} == {"x": [1, 2]}


def test_words_of_columns_that_are_not_forecast_do_not_matter(tmp_path: Path) -> None:
    path = _write(tmp_path / "table.csv", "x,y\n1,2\nmissing,3\n4,4\n5,5\n")
    assert list(read_table(path, None, ("y",)).series) == ["y"]


def test_times_before_the_last_row_are_known_too(tmp_path: Path) -> None:
    table = read_table(_write(tmp_path / "a.csv", "t,x\n2026-01-01,1\n2026-02-01,2\n"), None, ())
    assert table.coming(1, -1) == [datetime(2026, month, 1) for month in (1, 2, 3)]
    assert read_table(_write(tmp_path / "b.csv", "x\n1\n2\n"), None, ()).coming(1, -1) == [-1, 0, 1]


def test_other_kinds_of_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.csv or"):
        read_table(_write(tmp_path / "table.txt", "x\n1\n"), None, ())
    with pytest.raises(SeriesError, match="cannot be read"):
        read_table(_write(tmp_path / "table.parquet", "x\n1\n"), None, ())
    monkeypatch.setattr("reader_edge_series.tables.table._MAX_BYTES", 1)
    with pytest.raises(SeriesError, match="give the last part"):
        read_table(_write(tmp_path / "table.csv", "x\n1\n"), None, ())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("name", "limit", "sentence"),
    [
        ("_MOST_VALUES", 9, r"has 1\d values, more than the 9 that a table may have: give a part of it"),
        ("_MOST_COLUMNS", 1, "has 2 columns, more than the 1 "),
        ("MOST_VALUES", 4, r"has \d rows, more than the 4 "),
    ],
)
def test_a_file_of_more_than_a_table_may_have_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, name: str, limit: int, sentence: str
) -> None:
    path = tmp_path / f"table{suffix}"
    write_table({"x": list(range(5)), "y": list(range(5))}, path)
    monkeypatch.setattr(f"reader_edge_series.tables.table.{name}", limit)
    monkeypatch.setattr(parquet.ParquetFile, "read", pytest.fail)
    monkeypatch.setattr(csv, "read_csv", pytest.fail)
    with pytest.raises(SeriesError, match=sentence):
        read_table(path, None, ())


def test_a_few_bytes_that_declare_many_times_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"x": pa.nulls(MOST_VALUES + 1)}), path)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(SeriesError, match=f"has {MOST_VALUES + 1} rows, more than the {MOST_VALUES} "):
        read_table(path, None, ())


def test_only_columns_that_are_wanted_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"x": range(5), "y": range(5)}), path)
    monkeypatch.setattr("reader_edge_series.tables.table._MOST_VALUES", 5)
    assert list(read_table(path, None, ("y",)).series) == ["y"]


def test_memory_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 9 failed")

    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"x": range(5)}), path)
    monkeypatch.setattr(parquet.ParquetFile, "read", out_of_memory)
    with pytest.raises(SeriesError, match="malloc of size 9 failed"):
        read_table(path, None, ())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("caf\u00e9\n1\n".encode("latin1"), "utf-8"),
        ("a\n1\n".encode("utf-16"), "utf-8"),
        (b"t,x\n0000-01-01,1\n0000-01-02,2\n", "out of range"),
    ],
)
def test_a_table_in_another_encoding_or_before_all_years_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    (tmp_path / "table.csv").write_bytes(data)
    with pytest.raises(SeriesError, match=f"cannot be read as a table .*{sentence}"):
        read_table(tmp_path / "table.csv", None, ())


@pytest.mark.parametrize(
    ("number", "kind", "sentence"),
    [
        (1, pa.timestamp("ns"), "would lose data"),
        (1 << 62, pa.timestamp("us"), "out of range"),
        (1 << 50, pa.timestamp("s"), "out of bounds"),
        (1 << 30, pa.date32(), "out of bounds"),
        (1, pa.timestamp("us", "Mars/Phobos"), "of zone 'Mars/Phobos', unknown here: write them in UTC"),
    ],
)
def test_times_that_are_none_are_refused(tmp_path: Path, number: int, kind: pa.DataType, sentence: str) -> None:
    path = tmp_path / "table.parquet"
    width = pa.int32() if kind == pa.date32() else pa.int64()
    parquet.write_table(pa.table({"t": pa.array([number, number + 1], width).cast(kind), "x": [1.0, 2.0]}), path)
    with pytest.raises(SeriesError, match=sentence):
        read_table(path, None, ())


def test_times_of_a_zone_and_numbers_of_all_kinds_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    hours = pa.array(HOURS, pa.timestamp("ns", "Europe/Berlin"))
    numbers = {
        "decimal": pa.array([Decimal("0.25")] * 5),
        "half": np.full(5, 0.5, np.float16),
        "large": np.full(5, 2**64 - 1, np.uint64),
        "none": pa.nulls(5),
    }
    parquet.write_table(pa.table({"t": hours, **numbers}), path)
    table = read_table(path, None, ())
    assert table.coming(1) == [HOURS[-1].replace(tzinfo=UTC) + timedelta(hours=1)]
    assert [values[0] for values in table.series.values()] == pytest.approx([0.25, 0.5, 2.0**64, np.nan], nan_ok=True)


def test_a_horizon_beyond_all_years_is_refused(tmp_path: Path) -> None:
    last = read_table(_write(tmp_path / "a.csv", "t,x\n9999-12-30,1\n9999-12-31,2\n"), None, ())
    with pytest.raises(ConfigError, match="lead beyond the year 9999: give a shorter horizon"):
        last.check_horizon(1)
    read_table(_write(tmp_path / "b.csv", "x\n1\n2\n"), None, ()).check_horizon(10**9)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(SeriesError, match="is a pipe, not a file"):
        read_table(tmp_path / "table.csv", None, ())


def test_an_output_is_checked_before_the_work(tmp_path: Path) -> None:
    table = _write(tmp_path / "table.csv", "x\n1\n")
    (tmp_path / "link.csv").symlink_to(table)
    check_output(None, table)
    check_output(tmp_path / "new.csv", table)
    with pytest.raises(ConfigError, match="no kind of table"):
        check_output(tmp_path / "new.txt", table)
    with pytest.raises(ConfigError, match="is the table that is forecast: name another file"):
        check_output(tmp_path / "link.csv", table)
    with pytest.raises(SeriesError, match="cannot be written"):
        write_table({"x": [1]}, tmp_path)


def test_a_forecast_has_a_row_for_each_series_and_time(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"t": HOURS, "x": range(5), "y": range(5)}), path)
    found = Forecast(["x", "y"], np.arange(12.0).reshape(2, 2, 3), ForecastStats())
    rows = forecast_columns(read_table(path, None, ()), found, (0.5, 0.10000001, 0.1, 1.0))
    assert list(rows)[3:] == ["q0.5", "q0.10000001", "q0.1", "q1"]
    assert rows["time"] == [HOURS[-1] + timedelta(hours=number) for number in (1, 2, 3)] * 2
    assert rows["series"] == ["x"] * 3 + ["y"] * 3
    assert rows["mean"] == rows["q0.5"] == [1.5, 2.5, 3.5, 7.5, 8.5, 9.5]
