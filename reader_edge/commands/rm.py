"""`reader-edge rm`: remove a model from the user's cache."""

from pathlib import Path

import click

from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import STORED


@helpful_command("Remove a fetched or exported model.", "reader-edge rm smollm2:135m")
@click.argument("name", type=STORED)
def rm(name: str) -> None:
    """Remove a model from the cache: its download and the packages exported from it.

    NAME is as `reader-edge list` shows it. Files of yours outside the cache stay: only packages exported from them are
    removed.
    """
    from reader_edge.catalogue.names import canonical
    from reader_edge.catalogue.store import StoredModel
    from reader_edge.terminal.control_characters import visible
    from reader_edge.terminal.sizes import readable_size

    stored = StoredModel(canonical(name))
    if not stored.is_stored and StoredModel(str(Path(name).resolve())).is_stored:
        stored = StoredModel(str(Path(name).resolve()))
    whats = [part.what for part in stored.parts()]
    num_bytes = stored.remove()
    click.echo(visible(f"Removed {stored.name}: {', '.join(whats) or 'nothing whole'}; {readable_size(num_bytes)}."))
