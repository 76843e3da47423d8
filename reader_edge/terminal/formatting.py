"""Formatting of sizes, times, and of control characters in text from outside."""

import re
from datetime import timedelta

import click

_UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?) ?(GB|MB|kB)")

# All of Unicode's (C0, delete, C1) but tab and line feed, whose range holds whatever begins an escape sequence, and
# those that turn the order of what stands behind them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def readable_size(num_bytes: int) -> str:
    """A size with a decimal unit, e.g. "7.9 MB"."""
    for unit, scale in _UNITS.items():
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} bytes"


def parse_size(text: str) -> int | None:
    """Bytes of a size with a unit, e.g. "4GB"; None when it is none."""
    match = _SIZE.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


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


def visible(text: str) -> str:
    r"""The text with control characters spelt out, e.g. an escape as \x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def show_warning(message: Warning | str, *_where: object, **_how: object) -> None:
    """Show what is wrong, and not where in the program it was noticed."""
    click.echo(f"Warning: {visible(str(message))}", err=True)
