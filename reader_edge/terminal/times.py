"""Times, for eyes."""


def readable_time(seconds: float) -> str:
    """As exact as somebody who waits wants it: "8 s", "3 min", "1 h 20 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
