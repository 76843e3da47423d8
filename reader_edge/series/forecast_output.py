"""Where a forecast's table goes: to a file, whose name is printed, or to standard output."""

import csv
import io
import sys
from pathlib import Path
from typing import Any

import click

from reader_edge.series.table import write_table
from reader_edge.terminal.model_text import write


def give_columns(columns: dict[str, list[Any]], out: Path | None) -> None:
    """Raises SeriesError where `out` cannot be written."""
    if out is not None:
        write_table(columns, out)
        click.echo(out)
        return
    write(_csv_text(columns))
    sys.stdout.flush()


def _csv_text(columns: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([f"{each:.6g}" if isinstance(each, float) else each for each in row])
    return text.getvalue()
