"""`reader-edge lossy`: answers that may differ from the model's own, and are measured."""

import click

from reader_edge.commands.lossy.bench import bench
from reader_edge.commands.lossy.forecast import forecast
from reader_edge.commands.lossy.run import run
from reader_edge.commands.lossy.train_judge import train_judge

_WING = "reader_edge_runtime.lossy"


class LossyCommands(click.Group):
    """Its rules' folder may be deleted."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(_WING):
                raise
            folder = _WING.replace(".", "/")
            raise click.ClickException(
                f"The folder of lossy rules, {folder}, is missing: install reader-edge anew, or use "
                "`reader-edge run`, which needs none."
            ) from error


@click.group(cls=LossyCommands, short_help="Answers that may differ, and tell by how much.")
def lossy() -> None:
    """Answers and forecasts that may differ from the model's own; each tells by how much.

    Every other command keeps to the model's own answers, whatever is drafted.
    """


for _command in (run, bench, forecast, train_judge):
    lossy.add_command(_command)
