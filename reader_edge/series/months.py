"""Steps of calendar months: quarters and years are some of them."""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
