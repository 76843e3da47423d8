"""`reader-edge bench`: measurements."""

import click

from reader_edge.commands.bench_cost import cost
from reader_edge.commands.bench_decode import decode
from reader_edge.commands.bench_replay import replay_command


@click.group()
def bench() -> None:
    """Measure this machine, a model or a drafter."""


bench.add_command(decode)
bench.add_command(cost)
bench.add_command(replay_command)
