"""`reader-edge series forecast`: how series go on."""

import csv
import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.formatting import visible
from reader_edge.terminal.model_text import write

if TYPE_CHECKING:
    from reader_edge_series.tables.table import SeriesTable


def _parse_levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        levels = tuple(float(each) for each in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers such as 0.1,0.5,0.9.") from None
    if not all(0 <= level <= 1 for level in levels) or len(set(levels)) < len(levels):
        raise click.BadParameter(f"{value!r} has a level twice, or one that is not from 0 to 1.")
    return levels


@helpful_command(
    "Forecast time series.",
    "reader-edge series forecast --plot forecast.png",
    "reader-edge series forecast sales.csv --time day --column north --horizon 28 -o forecast.parquet",
)
@click.argument("table", required=False, type=options.FILE)
@click.option("--model", type=options.FOLDER, help="A package of `series export`. Default: the bundled model.")
@click.option("--horizon", default=96, show_default=True, type=options.IntegerRange(1), help="Values to come.")
@click.option("--time", "time_column", help="The column of times. Default: the first that has times.")
@click.option("--column", "columns", multiple=True, help="A column to forecast, repeatable. Default: all of numbers.")
@click.option("-o", "--out", type=options.FILE_PATH, help="A .csv or .parquet file. Default: CSV to standard output.")
@click.option("--paths", "num_paths", default=64, show_default=True, type=options.IntegerRange(1), help="Sample paths.")
@click.option(
    "--quantiles",
    "levels",
    default="0.1,0.5,0.9",
    show_default=True,
    callback=_parse_levels,
    help="Levels of quantiles beside the mean.",
)
@click.option(
    "--drafts",
    default="own",
    show_default=True,
    type=click.Choice(["own", "model", "analogs", "none"]),
    help="Where drafts come from: further patches of the model itself, the package's small model, the series' past. "
    "The law is the same.",
)
@click.option(
    "--seed",
    type=options.IntegerRange(0, 2**64 - 1),
    help="The same seed draws the same numbers, with the same options on the same machine: a rule, not the clock, then "
    "says how much is drafted.",
)
@options.threads
@click.option("--plot", type=options.FILE_PATH, help="Draw the forecast to a .png, .svg or .pdf file.")
def forecast(
    table: Path | None,
    model: Path | None,
    horizon: int,
    num_paths: int,
    levels: tuple[float, ...],
    time_column: str | None,
    columns: tuple[str, ...],
    drafts: str,
    seed: int | None,
    threads: int,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Forecast the series of TABLE, CSV or Parquet: a column each, oldest row first. Needs the extra "series".

    A row of the answer is a series at a time to come: mean and quantiles over sample paths. Without TABLE, electricity
    is forecast, of which four weeks come along.
    """
    from reader_edge.bench.plot import check_plot
    from reader_edge_series.forecaster import Forecaster
    from reader_edge_series.tables.bundled import bundled_forecaster, bundled_table
    from reader_edge_series.tables.forecast_plot import plot_forecast
    from reader_edge_series.tables.table import check_apart, forecast_columns

    check_plot(plot)
    if plot is not None:
        check_apart(plot, table or bundled_table())
    read = _read_series(table, time_column, columns, horizon, out)
    forecaster = Forecaster.load(model or bundled_forecaster(), threads)
    start = time.perf_counter()
    found = forecaster.forecast(read.series, horizon, num_paths, drafts=drafts, seed=seed)
    seconds, stats = time.perf_counter() - start, found.stats
    summary = f"{len(found.names)} series, {num_paths} paths each: {seconds:.2f} s"
    summary += f", {stats.num_passes} passes" if stats.num_passes else ""  # what the prompt's own pass gives needs none
    accepted = f", {stats.acceptance_rate:.0%} of {stats.num_drafted} drafts accepted" if stats.num_drafted else ""
    click.echo(f"{summary}{accepted}.", err=True)
    if plot is not None:
        plot_forecast(read, found, plot)
    _write_columns(forecast_columns(read, found, levels), out)


def _read_series(
    table: Path | None, time_column: str | None, columns: tuple[str, ...], horizon: int, out: Path | None
) -> "SeriesTable":
    """The series of TABLE, or of the bundled one, once it is known that `out` can be written.

    Standard error says what holds no numbers. Raises ConfigError, SeriesError, or
    InstallationError without pyarrow.
    """
    from reader_edge_series.tables.bundled import bundled_table
    from reader_edge_series.tables.table import check_output, read_table

    source = table or bundled_table()
    check_output(out, source)
    read = read_table(source, time_column, columns)
    read.check_horizon(horizon)
    if read.left_out:
        click.echo(visible(f"Left out, since they hold no numbers: {', '.join(read.left_out)}."), err=True)
    return read


def _write_columns(columns: dict[str, list[Any]], out: Path | None) -> None:
    """Raises SeriesError where `out` cannot be written."""
    if out is not None:
        from reader_edge_series.tables.table import write_table

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
