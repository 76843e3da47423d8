"""`reader-edge lossy forecast`: how series go on, by means alone, and what drafts changed in them."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.control_characters import visible


@helpful_command(
    "Forecast means of time series.",
    "reader-edge lossy forecast --horizon 168",
    "reader-edge lossy forecast sales.csv --column north --horizon 28 --tolerance 0.2",
)
@click.argument("table", required=False, type=options.FILE)
@click.option("--model", type=options.FOLDER, help="A package of `series export`. Default: the bundled model.")
@click.option("--horizon", default=96, show_default=True, type=click.IntRange(1), help="Values to come.")
@click.option(
    "--tolerance",
    default=0.1,
    show_default=True,
    type=options.FiniteRange(min=0),
    help="How far a draft may lie from the model's mean, in the model's deviations; 0 is the rollout of means itself.",
)
@click.option("--time", "time_column", help="The column of times. Default: the first that has times.")
@click.option("--column", "columns", multiple=True, help="A column to forecast, repeatable. Default: all of numbers.")
@click.option(
    "--drafts",
    type=click.Choice(["own", "model", "analogs", "none"]),
    help="Where drafts come from, as of `series forecast`.",
)
@options.threads
@click.option("-o", "--out", type=options.FILE_PATH, help="A .csv or .parquet file. Default: CSV to standard output.")
def forecast(
    table: Path | None,
    model: Path | None,
    horizon: int,
    tolerance: float,
    time_column: str | None,
    columns: tuple[str, ...],
    drafts: str | None,
    threads: int,
    out: Path | None,
) -> None:
    """Forecast the series of TABLE, as `reader-edge series forecast` does, by one path of means.

    A draft near the model's mean may stand in its place. Standard error tells how many do, and how far off they are.
    The path tells nothing of how sure it is: `reader-edge series forecast` does.
    """
    from reader_edge.series.bundled import bundled_forecaster, bundled_table
    from reader_edge.series.forecast_output import give_columns
    from reader_edge.series.table import check_output, forecast_columns, read_table
    from reader_edge_runtime.lossy.mean_forecaster import MeanForecaster

    source = table or bundled_table()
    check_output(out, source)
    read = read_table(source, time_column, columns)
    read.check_horizon(horizon)
    if read.left_out:
        click.echo(visible(f"Left out, since they hold no numbers: {', '.join(read.left_out)}."), err=True)
    forecaster = MeanForecaster.load(model or bundled_forecaster(), threads, tolerance)
    found = forecaster.rolled_out(read.series, horizon, drafts=drafts)
    num_patches = len(read.series) * -(-horizon // forecaster.manifest.model.patch_size)
    told = f"Lossy (tolerance {tolerance:g}): {found.num_strayed} of {num_patches} patches are not the model's mean"
    off = f", {found.mean_strayed:.2f} deviations off on average, {found.most_strayed:.2f} at most"
    click.echo(f"{told}{off if found.num_strayed else ''}; passes: {found.forecast.stats.num_passes}.", err=True)
    give_columns(forecast_columns(read, found.forecast, ()), out)
