"""Timestamps of a table's rows: a fixed step, calendar days across changes of the clock, or months."""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from reader_edge.terminal.formatting import exact_time
from reader_edge_runtime.errors import SeriesError

_YEAR = 12
_LONGEST = 31
LOOKED_AT = 13  # rows, which have every month and a leap year in all but a century


@dataclass(frozen=True, slots=True)
class Months:
    """number: of months in a step. day: of each month, or its last where it has fewer."""

    number: int
    day: int

    @classmethod
    def of(cls, times: Sequence[datetime]) -> "Months | None":
        """By the first two times; None where they are not whole months apart. Ends of months stay their ends."""
        number = _month(times[1]) - _month(times[0])
        looked_at = times[:LOOKED_AT]
        is_ends = all(time.day == monthrange(time.year, time.month)[1] for time in looked_at)
        months = cls(number, _LONGEST if is_ends else max(time.day for time in looked_at))
        return months if number > 0 and months.after(times[0], 1) == times[1] else None

    def after(self, time: datetime, number: int) -> datetime:
        """So many steps later. Raises OverflowError beyond the years that a calendar has."""
        year, month = divmod(_month(time) + number * self.number, _YEAR)
        try:
            return time.replace(year=year, month=month + 1, day=min(self.day, monthrange(year, month + 1)[1]))
        except ValueError as error:
            raise OverflowError(str(error)) from None

    def __str__(self) -> str:
        number, name = (self.number // _YEAR, "year") if self.number % _YEAR == 0 else (self.number, "month")
        return f"{number} {name}{'s' if number > 1 else ''}"


def _month(time: datetime) -> int:
    return _YEAR * time.year + time.month - 1


Times = npt.NDArray[np.datetime64]  # microseconds, of UTC where there is a zone

_DAY = timedelta(days=1)
_YEARS = np.array(["0001-01-01", "10000-01-01"], "datetime64[us]")


@dataclass(frozen=True, slots=True)
class RowTimes:
    """last: of the last row, by the zone's clock where `is_by_clock`, by UTC otherwise. step: from row to row.

    zone: of the times; None where the table names none.
    """

    last: datetime
    step: timedelta | Months
    zone: tzinfo | None
    is_by_clock: bool

    def coming(self, number: int) -> datetime:
        """Of the row that lies so many behind the last. Raises OverflowError beyond the year 9999."""
        time = _behind(self.last, self.step, number)
        if self.zone is None:
            return time
        return (_of_clock(time, self.zone) if self.is_by_clock else time.replace(tzinfo=UTC)).astimezone(self.zone)


def row_times(column: Any, path: Path) -> RowTimes | None:
    """Of a table's column of times; None for fewer than two rows.

    Raises SeriesError unless they are equally apart, OverflowError for times that no calendar has.
    """
    import pyarrow as pa

    zone = _zone(getattr(column.type, "tz", None), path)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null())[0])
        raise SeriesError(f"Row {row + 1} of '{path}' has no time: give it one, or leave the row out.")
    times: Times = column.cast(pa.timestamp("us", getattr(column.type, "tz", None))).to_numpy()
    if len(times) < 2:
        return None
    if times.min() < _YEARS[0] or times.max() >= _YEARS[1]:
        raise OverflowError("a time is out of range: years are 1 to 9999")
    first, step, clock, row = _evenest(times, zone)
    if row < len(times):
        behind = _clock(times[row], clock) - _clock(times[row - 1], clock)
        time = times[row].item() if zone is None else _utc(times[row]).astimezone(zone)
        order = "earlier" if behind < timedelta() else "later"
        than = f"{exact_time(abs(behind))} {order} than" if behind else "as is"
        others = f", where others are {step_name(step)} apart" if behind != step else ""
        raise SeriesError(
            f"Row {row + 1} of '{path}' is of {time}, {than} the row before{others}: "
            "fill gaps and sort the rows first, or leave out the column of times."
        )
    return RowTimes(_behind(first, step, len(times) - 1), step, zone, clock is not None)


def step_name(step: timedelta | Months) -> str:
    """As "1 hour", "7 days", "3 months"."""
    return str(step) if isinstance(step, Months) else exact_time(abs(step))


def _zone(name: str | None, path: Path) -> tzinfo | None:
    import pyarrow as pa

    try:
        if name is None:
            return None
        zone: tzinfo = pa.lib.string_to_tzinfo(name) if name[:1] in ("+", "-") else ZoneInfo(name)
        return zone
    except (ValueError, KeyError, OSError):
        raise SeriesError(f"The times of '{path}' are of zone {name!r:.80}, unknown here: write them in UTC.") from None


def _evenest(times: Times, zone: tzinfo | None) -> tuple[datetime, timedelta | Months, tzinfo | None, int]:
    """The first time, the step that most rows keep, by which clock (None: of UTC), and the first row that breaks it."""
    num_even = _num_even(times)
    first, second = _clock(times[0], zone), _clock(times[1], zone)
    months = Months.of([_clock(time, zone) for time in times[:LOOKED_AT]])
    if months is not None and (row := _num_even_days(times, first, months, zone or UTC)) >= num_even:
        return first, months, zone, row
    days = second - first
    is_of_days = zone is not None and days > timedelta() and not days % _DAY
    if is_of_days and (row := _num_even_days(times, first, days, zone or UTC)) >= num_even:
        return first, days, zone, row
    return _clock(times[0], None), _clock(times[1], None) - _clock(times[0], None), None, num_even


def _num_even(times: Times) -> int:
    """Rows up to the first that is not as far behind the one before as the second is."""
    steps = np.diff(times)
    uneven = np.flatnonzero((steps != steps[0]) | (steps <= np.timedelta64(0)))
    return int(uneven[0]) + 1 if uneven.size else len(times)


def _num_even_days(times: Times, first: datetime, step: timedelta | Months, zone: tzinfo) -> int:
    """The same by the zone's clock, at which days may have 23 or 25 hours."""
    rows = range(2, len(times))
    return next((row for row in rows if _of_clock(_behind(first, step, row), zone) != _utc(times[row])), len(times))


def _behind(time: datetime, step: timedelta | Months, number: int) -> datetime:
    """So many steps behind. Raises OverflowError."""
    return step.after(time, number) if isinstance(step, Months) else time + number * step


def _utc(time: Any) -> datetime:
    found: datetime = time.item()
    return found.replace(tzinfo=UTC)


def _clock(time: Any, zone: tzinfo | None) -> datetime:
    """What a clock of the zone shows then, or one of UTC."""
    return _utc(time).astimezone(zone or UTC).replace(tzinfo=None)


def _of_clock(time: datetime, zone: tzinfo) -> datetime:
    """When the zone's clock shows that, in UTC; where it leaves that out, as if it had not changed yet."""
    return time.replace(tzinfo=zone).astimezone(UTC)
