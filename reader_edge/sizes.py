"""Sizes in bytes, for eyes."""


def readable_size(num_bytes: int) -> str:
    """A size with a decimal unit, e.g. "7.9 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} bytes"
