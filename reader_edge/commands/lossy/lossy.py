"""`reader-edge lossy`: answers that may differ from the model's own, and are measured."""

import click

from reader_edge.commands.lossy.bench import bench
from reader_edge.commands.lossy.forecast import forecast
from reader_edge.commands.lossy.run import run
from reader_edge.commands.lossy.train_judge import train_judge


@click.group(short_help="Answer faster, and tell what that gave up.")
def lossy() -> None:
    """Answers and forecasts that may differ from the model's own; each tells by how much.

    Every other command keeps to the model's own answers, whatever is drafted.
    """


for _command in (run, bench, forecast, train_judge):
    lossy.add_command(_command)
