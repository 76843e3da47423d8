"""Months and quarters as a CSV file names them: each is read as its first day."""

from typing import Any

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
