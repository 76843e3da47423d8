"""What every command that forecasts a table is asked: where the series are, how far, and where the answer goes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from reader_edge.commands import options
from reader_edge.terminal.control_characters import visible

if TYPE_CHECKING:
    from reader_edge.series.table import SeriesTable

Command = TypeVar("Command", bound=Callable[..., None])
_OPTIONS = (
    click.argument("table", required=False, type=options.FILE),
    click.option("--model", type=options.FOLDER, help="A package of `series export`. Default: the bundled model."),
    click.option("--horizon", default=96, show_default=True, type=options.IntegerRange(1), help="Values to come."),
    click.option("--time", "time_column", help="The column of times. Default: the first that has times."),
    click.option(
        "--column", "columns", multiple=True, help="A column to forecast, repeatable. Default: all of numbers."
    ),
    click.option(
        "-o", "--out", type=options.FILE_PATH, help="A .csv or .parquet file. Default: CSV to standard output."
    ),
)


def table_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked_table(
    table: Path | None, time_column: str | None, columns: tuple[str, ...], horizon: int, out: Path | None
) -> "SeriesTable":
    """The series of TABLE, or of the bundled one, once it is known that `out` can be written.

    Tells on standard error what holds no numbers. Raises ConfigError, SeriesError, or
    InstallationError without pyarrow.
    """
    from reader_edge.series.bundled import bundled_table
    from reader_edge.series.table import check_output, read_table

    source = table or bundled_table()
    check_output(out, source)
    read = read_table(source, time_column, columns)
    read.check_horizon(horizon)
    if read.left_out:
        click.echo(visible(f"Left out, since they hold no numbers: {', '.join(read.left_out)}."), err=True)
    return read
