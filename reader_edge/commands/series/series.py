"""`reader-edge series`: forecasts of time series."""

import click

from reader_edge.commands.series.export import export
from reader_edge.commands.series.forecast import forecast
from reader_edge.commands.series.train import train


@click.group(short_help="Forecast time series.")
def series() -> None:
    """Forecast time series by sample paths, drafted and verified patch by patch: the law stays the same."""


for command in (forecast, train, export):
    series.add_command(command)
