"""Times, for eyes."""

from datetime import timedelta


def readable_time(seconds: float) -> str:
    """As exact as somebody who waits wants it: "8 s", "3 min", "1 h 20 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def exact_time(time: timedelta) -> str:
    """As exact as it is: "1 hour", "2 days 30 minutes", "1.5 seconds". time: not negative."""
    minutes, seconds = divmod(time.seconds, 60)
    exact_seconds = f"{seconds}.{time.microseconds:06}".rstrip("0").rstrip(".") if time.microseconds else str(seconds)
    numbers = (str(time.days), str(minutes // 60), str(minutes % 60), exact_seconds)
    units = ("day", "hour", "minute", "second")
    parts = [
        f"{number} {unit}{'s' * (number != '1')}" for number, unit in zip(numbers, units, strict=True) if number != "0"
    ]
    return " ".join(parts) or "0 seconds"
