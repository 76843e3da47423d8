"""Text from outside, for a terminal: a package, its template or its model must not move the cursor or hide a line."""

import re

# All of Unicode's (C0, delete, C1) but tab and line feed, whose range holds whatever begins an escape sequence, and
# those that turn the order of what stands behind them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with control characters spelt out, e.g. an escape as \x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
