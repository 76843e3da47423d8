"""Text from outside, for a terminal: a package, its template or its model must not move the cursor or hide a line."""

import re

# All of Unicode's (C0, delete, C1) but tab and line feed. Their range holds whatever begins an escape sequence.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""The text with control characters spelt out, e.g. an escape as \x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
