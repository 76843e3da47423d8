"""`reader-edge forget`: erase past answers."""

from pathlib import Path

import click

from reader_edge.commands import options


@click.command(short_help="Erase a history of past answers.")
@click.argument("file", type=options.FILE)
def forget(file: Path) -> None:
    """Erase FILE, a history of past answers that `run --history` made.

    A file of any other kind is left alone.
    """
    from reader_edge_runtime.drafting.sources.history_file import erase_history

    erase_history(file)
