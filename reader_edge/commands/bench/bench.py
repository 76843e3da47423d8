"""`reader-edge bench`: measurements of this machine, a model or a drafter."""

import click

from reader_edge.commands.bench.cost import cost
from reader_edge.commands.bench.decode import decode
from reader_edge.commands.bench.record import record
from reader_edge.commands.bench.replay import replay_command


@click.group()
def bench() -> None:
    """Measure this machine, a model or a drafter."""


for command in (cost, decode, record, replay_command):
    bench.add_command(command)
