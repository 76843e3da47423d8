"""Refuses CSV files that would lose data or be misread, in one sentence each."""

import csv
import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import SeriesError

PERIOD = r"[0-9]{4}(-(0[1-9]|1[0-2])|-?Q[1-4])"  # 2026-01, 2026-Q1 or 2026Q1
_FIRST_DAYS = {r"^([0-9]{4}-[0-9]{2})$": r"\1-01"} | {
    f"^([0-9]{{4}})-?Q{quarter}$": rf"\1-{3 * quarter - 2:02}-01" for quarter in range(1, 5)
}


def first_days(column: Any) -> Any:
    """A column of texts that all name periods, as timestamps; any other column as it is."""
    import pyarrow as pa
    from pyarrow import compute

    if not pa.types.is_string(column.type) or not column.null_count < len(column):
        return column
    if not compute.all(compute.match_substring_regex(column, f"^{PERIOD}$")).as_py():
        return column
    for name, day in _FIRST_DAYS.items():
        column = compute.replace_substring_regex(column, name, day)
    return column.cast(pa.timestamp("us"))


_PATTERNS = {
    "number": r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$",
    "time": rf"^\s*([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ].*)?|{PERIOD})$",
}
_LOOKED_AT = 1 << 20  # bytes: two lines are shorter
_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}


def check_first_lines(path: Path) -> None:
    """Raise SeriesError where no line has names, or where something else than commas separates columns."""
    with path.open("rb") as file:
        text = file.read(_LOOKED_AT).decode("utf-8-sig", errors="replace")
    header, values = [*filter(None, text.splitlines()), "", ""][:2]
    for separator, name in _SEPARATORS.items():
        if "," not in header and separator in header and separator in values:
            raise SeriesError(f"The columns of '{path}' are separated by {name}: separate them by commas.")
    names = [each.strip().strip('"') for each in header.split(",")]
    if all(_is_value(name) for name in names):
        raise SeriesError(
            f"'{path}' begins with {names[0]!r:.80}, a value and no name of a column: put a line of names before it."
        )


def check_no_row_is_empty(path: Path) -> None:
    """Raise SeriesError for an empty line between others: a reader of tables leaves it out."""
    empty: list[int] = []
    num_before, number = 0, -1  # the first line has the names
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.reader(file):
            if row and empty:
                num_before = len(empty)
            if row or number >= 0:
                number += 1
            if not row and number > 0:
                empty.append(number)
    if num_before:
        raise SeriesError(
            f"Row {empty[0]} of '{path}' is empty ({num_before} in all): fill gaps first, or take empty lines out."
        )


def check_words(name: str, column: Any, path: Path, kinds: Sequence[str]) -> None:
    """Raise SeriesError for a word in a column of text whose other values are mostly of a kind: "number" or "time"."""
    import pyarrow as pa
    from pyarrow import compute

    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return
    for kind in kinds:
        is_word = compute.invert(compute.match_substring_regex(column, _PATTERNS[kind])).fill_null(False)
        num_words = compute.sum(is_word).as_py() or 0
        if 0 < 2 * num_words < len(column) - column.null_count:
            row = compute.index(is_word, True).as_py()
            raise SeriesError(
                f"Row {row + 1} of column {name!r:.80} of '{path}' is {column[row].as_py()!r:.80}, where others are "
                f"{kind}s ({num_words} such in all): make it a {kind}, or leave the row out."
            )


def _is_value(name: str) -> bool:
    """Whether it is a number or a time."""
    with suppress(ValueError):
        return math.isfinite(float(name))
    with suppress(ValueError):
        datetime.fromisoformat(name)
        return True
    return False
