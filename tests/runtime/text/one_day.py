"""The day on which `scripts/record_templates` renders."""

from datetime import datetime, tzinfo


class OneDay(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "OneDay":
        return cls(2026, 7, 26, 12, 30, tzinfo=tz)
