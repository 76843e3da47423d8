"""Tables of the pages of results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def gigabytes(record: Mapping[str, Any]) -> str:
    """A worker's memory at its highest; a dash where it was not measured."""
    return f"{record['peak_bytes'] / 1e9:.2f}" if "peak_bytes" in record else "-"
