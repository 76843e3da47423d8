"""`reader-edge forget`: erase past answers."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command


@helpful_command("Erase a history of past answers.", "reader-edge forget past.redg")
@click.argument("file", type=options.FILE)
def forget(file: Path) -> None:
    """Erase FILE, the past answers that `run --history` or `serve --history` kept.

    Any other kind of file is refused and left unchanged.
    """
    from reader_edge_runtime.drafting.sources.history_file import erase_history

    erase_history(file)
