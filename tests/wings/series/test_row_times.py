"""Times of rows: by the hours that pass, or by the days of a zone whose clock changes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from reader_edge_runtime.errors import SeriesError
from reader_edge_series.tables.row_times import row_times, step_name

BERLIN, CAIRO = "Europe/Berlin", "Africa/Cairo"
TABLE = Path("a.parquet")


def _hours(zone: str, number: int, step: timedelta = timedelta(hours=1)) -> pa.Array:
    """From the evening before Berlin's clock goes from two to three."""
    start = datetime(2020, 3, 28, 20, tzinfo=UTC)
    return pa.array([start + row * step for row in range(number)], pa.timestamp("us", zone))


def _days(zone: str, start: datetime, number: int) -> pa.Array:
    """Midnights of the zone."""
    days = [(start + timedelta(days=row)).replace(tzinfo=ZoneInfo(zone)) for row in range(number)]
    return pa.array(days, pa.timestamp("us", zone))


def _coming(column: pa.Array, horizon: int) -> list[str]:
    times = row_times(column, TABLE)
    assert times is not None
    return [str(times.coming(number)) for number in range(1, horizon + 1)]


def test_hours_go_on_across_a_change_of_the_clock() -> None:
    assert _coming(_hours(BERLIN, 4), 3) == [
        "2020-03-29 01:00:00+01:00",
        "2020-03-29 03:00:00+02:00",
        "2020-03-29 04:00:00+02:00",
    ]


def test_hours_across_a_change_of_the_clock_are_equally_apart() -> None:
    assert _coming(_hours(BERLIN, 48), 1) == ["2020-03-30 22:00:00+02:00"]


def test_a_zone_may_be_an_offset() -> None:
    assert _coming(_hours("+01:00", 5), 1) == ["2020-03-29 02:00:00+01:00"]


def test_days_of_a_zone_begin_at_its_midnight_whatever_hours_they_have() -> None:
    assert _coming(_days(BERLIN, datetime(2026, 3, 20), 9), 2) == [
        "2026-03-29 00:00:00+01:00",
        "2026-03-30 00:00:00+02:00",
    ]
    assert _coming(_days(BERLIN, datetime(2026, 3, 20), 20), 1) == ["2026-04-09 00:00:00+02:00"]


def test_a_midnight_that_the_clock_leaves_out_is_the_hour_behind_it() -> None:
    assert _coming(_days(CAIRO, datetime(2025, 4, 20), 5), 2) == [
        "2025-04-25 01:00:00+03:00",
        "2025-04-26 00:00:00+03:00",
    ]
    assert _coming(_days(CAIRO, datetime(2025, 4, 20), 7), 1) == ["2025-04-27 00:00:00+03:00"]


def test_days_of_utc_are_equally_apart_in_a_zone() -> None:
    assert _coming(_hours(BERLIN, 5, timedelta(days=1)), 1) == ["2020-04-02 22:00:00+02:00"]


def test_a_day_that_is_missing_is_found_behind_a_change_of_the_clock() -> None:
    days = _days(BERLIN, datetime(2026, 3, 25), 12)
    sentence = r"Row 9 .*00:00:00\+02:00, 2 days later than .*, where others are 1 day apart"
    with pytest.raises(SeriesError, match=sentence):
        row_times(pa.concat_arrays([days[:8], days[9:]]), TABLE)


@pytest.mark.parametrize("step", [timedelta(), timedelta(days=-1), timedelta(hours=-1)])
@pytest.mark.parametrize("zone", ["UTC", BERLIN])
def test_times_that_do_not_go_on_are_refused(step: timedelta, zone: str) -> None:
    behind = {0: "as is", -3600: "1 hour earlier than", -86400: "1 day earlier than"}[step // timedelta(seconds=1)]
    sentence = f"Row 2 of 'a.parquet' is of .*, {behind} the row before: fill gaps"
    with pytest.raises(SeriesError, match=sentence):
        row_times(_hours(zone, 2, step), TABLE)


@pytest.mark.parametrize(
    ("days", "coming", "step"),
    [
        (["2026-01-01", "2026-02-01", "2026-03-01"], ["2026-04-01", "2026-05-01"], "1 month"),
        (["2026-01-31", "2026-02-28", "2026-03-31"], ["2026-04-30", "2026-05-31"], "1 month"),
        (["2025-11-30", "2025-12-31"], ["2026-01-31", "2026-02-28"], "1 month"),
        (["2025-12-30", "2026-01-30", "2026-02-28"], ["2026-03-30", "2026-04-30"], "1 month"),
        (["2025-03-31", "2025-06-30", "2025-09-30"], ["2025-12-31", "2026-03-31"], "3 months"),
        (["2022-02-28", "2023-02-28", "2024-02-29"], ["2025-02-28", "2026-02-28"], "1 year"),
        (["2019-12-31", "2020-01-07", "2020-01-14"], ["2020-01-21", "2020-01-28"], "7 days"),
    ],
)
@pytest.mark.parametrize("zone", [None, BERLIN])
def test_months_quarters_and_years_are_those_of_the_calendar(
    days: list[str], coming: list[str], step: str, zone: str | None
) -> None:
    times = [datetime.fromisoformat(day).replace(tzinfo=None if zone is None else ZoneInfo(zone)) for day in days]
    found = row_times(pa.array(times, pa.timestamp("us", zone)), TABLE)
    assert found is not None
    assert [str(found.coming(number).date()) for number in (1, 2)] == coming
    assert {found.coming(number).hour for number in range(-1, 9)} == {0}
    assert step_name(found.step) == step


def test_a_month_that_is_missing_is_named() -> None:
    months = pa.array([datetime(2026, month, 1) for month in (1, 2, 3, 5)], pa.timestamp("us"))
    with pytest.raises(SeriesError, match=r"Row 4 .* 61 days later .*, where others are 1 month apart"):
        row_times(months, TABLE)


def test_months_end_where_the_calendar_does() -> None:
    found = row_times(pa.array([datetime(9999, 10, 1), datetime(9999, 11, 1)], pa.timestamp("us")), TABLE)
    assert found is not None
    assert found.coming(1) == datetime(9999, 12, 1)
    with pytest.raises(OverflowError):
        found.coming(2)


def test_one_row_has_no_step() -> None:
    assert row_times(_hours(BERLIN, 1), TABLE) is None


@pytest.mark.parametrize("zone", ["Mars/Phobos", "../../../etc/passwd", "a" * 100_000, "+99:99", "Europe"])
def test_a_zone_that_is_none_is_refused_and_cut(zone: str) -> None:
    with pytest.raises(SeriesError, match=r"are of zone '.{1,90}, unknown here: write them in UTC\."):
        row_times(pa.array([0, 1], pa.timestamp("us", zone)), TABLE)
