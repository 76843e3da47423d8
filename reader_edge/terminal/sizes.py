"""Sizes in bytes, for eyes and from hands."""

import re

_UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?) ?(GB|MB|kB)")


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
