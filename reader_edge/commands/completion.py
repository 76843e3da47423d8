"""`reader-edge completion`: commands, options and names of models, completed by the shell."""

import os
from pathlib import Path

import click

from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.formatting import visible
from reader_edge.terminal.shell_completion import SHELLS, completion_script, install_completion


@helpful_command("Have the shell complete names of models.", "reader-edge completion --install")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write the script, and have the shell read it when it starts.")
def completion(shell: str | None, install: bool) -> None:
    """Print what has SHELL complete commands, options and names of models; by default for the shell in $SHELL.

    With --install it is written to a file, and a line that reads it is added to ~/.bashrc or ~/.zshrc, once; fish
    finds it by itself.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"$SHELL names none of {', '.join(SHELLS)}: give one of them.")
    if not install:
        click.echo(completion_script(name), nl=False)
        return
    place = install_completion(name, os.environ)
    click.echo(visible(f"{name} completes from its next start on: '{place.script}'."), err=True)
    if place.startup is not None:
        click.echo(visible(f"'{place.startup}' reads it; remove that line to be rid of it."), err=True)
