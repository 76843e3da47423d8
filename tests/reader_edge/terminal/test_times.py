"""Times are shown in words."""

from datetime import timedelta

import pytest

from reader_edge.terminal.formatting import exact_time


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (timedelta(hours=1), "1 hour"),
        (timedelta(minutes=15), "15 minutes"),
        (timedelta(days=2, minutes=30, seconds=1, microseconds=500_000), "2 days 30 minutes 1.5 seconds"),
        (timedelta(days=1_000_000, microseconds=1), "1000000 days 0.000001 seconds"),
        (timedelta(minutes=10, seconds=10), "10 minutes 10 seconds"),
        (timedelta(), "0 seconds"),
    ],
)
def test_a_time_is_shown_exactly_and_in_words(time: timedelta, shown: str) -> None:
    assert exact_time(time) == shown
