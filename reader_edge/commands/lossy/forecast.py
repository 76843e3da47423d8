"""`reader-edge lossy forecast`: how series go on, by means alone, and what drafts changed in them."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.commands.series.table_options import asked_table, table_options
from reader_edge.terminal.command_help import helpful_command


@helpful_command(
    "Forecast means of time series.",
    "reader-edge lossy forecast --horizon 168",
    "reader-edge lossy forecast sales.csv --column north --horizon 28 --tolerance 0.3",
)
@table_options
@click.option(
    "--tolerance",
    default=0.5,
    show_default=True,
    type=options.FiniteRange(min=0),
    help="How far a draft may lie from the model's mean, in the model's deviations; 0 is the rollout of means itself.",
)
@click.option(
    "--drafts",
    default="own",
    show_default=True,
    type=click.Choice(["own", "model", "analogs", "none"]),
    help="Where drafts come from, as of `series forecast`.",
)
@options.threads
def forecast(
    table: Path | None,
    model: Path | None,
    horizon: int,
    tolerance: float,
    time_column: str | None,
    columns: tuple[str, ...],
    drafts: str,
    threads: int,
    out: Path | None,
) -> None:
    """Forecast the series of TABLE, as `reader-edge series forecast` does, by one path of means.

    A draft near the model's mean may stand in its place. Standard error tells how many do, and how far off they are.
    The path tells nothing of how sure it is: `reader-edge series forecast` does.
    """
    from reader_edge.series.bundled import bundled_forecaster
    from reader_edge.series.forecast_output import give_columns
    from reader_edge.series.table import forecast_columns
    from reader_edge_runtime.lossy.mean_forecaster import MeanForecaster

    read = asked_table(table, time_column, columns, horizon, out)
    forecaster = MeanForecaster.load(model or bundled_forecaster(), threads, tolerance)
    found = forecaster.rolled_out(read.series, horizon, drafts=drafts)
    num_patches = len(read.series) * -(-horizon // forecaster.manifest.model.patch_size)
    told = f"Lossy (tolerance {tolerance:g}): {found.num_strayed} of {num_patches} patches are not the model's mean"
    off = f", {found.mean_strayed:.2f} deviations off on average, {found.most_strayed:.2f} at most"
    num_passes = found.forecast.stats.num_passes
    passes = f"passes: {num_passes} behind those that read the series, which tell the first patch"
    click.echo(f"{told}{off if found.num_strayed else ''}; {passes}.", err=True)
    give_columns(forecast_columns(read, found.forecast, ()), out)
