"""`reader-edge bench`: measurements."""

import click

from reader_edge.commands.bench_cost import cost


@click.group()
def bench() -> None:
    """Measure this machine, a model or a drafter."""


bench.add_command(cost)
