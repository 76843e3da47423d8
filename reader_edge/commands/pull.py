"""`reader-edge pull`: fetch a model."""

import click

from reader_edge.catalogue.entries import CATALOGUE
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_NAMES = ", ".join(name + (" (gated)" if origin.is_gated else "") for name, origin in CATALOGUE.items())


@helpful_command(
    "Fetch a model by its name.",
    "reader-edge pull qwen2.5:0.5b",
    "reader-edge pull Qwen/Qwen2.5-0.5B-Instruct",
    before=f"Known names: {_NAMES}. A gated model asks you to accept its licence on the hub first.\n\n",
)
@click.argument("name", type=MODEL)
def pull(name: str) -> None:
    """Fetch the model NAME into the user's cache, and print its path.

    NAME is a known name, OWNER/NAME of a model of the Hugging Face hub, or OWNER/NAME/FILE.gguf of one of its files.
    An interrupted download resumes. What is here already, also in the Hugging Face cache, is not fetched again.
    """
    from reader_edge.catalogue.pull import pulled

    click.echo(pulled(name))
