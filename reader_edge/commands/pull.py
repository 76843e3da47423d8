"""`reader-edge pull`: fetch a model."""

import click

from reader_edge.catalogue.entries import CATALOGUE

_NAMES = ", ".join(name + (" (gated)" if origin.is_gated else "") for name, origin in CATALOGUE.items())


@click.command(
    short_help="Fetch a model by its name.",
    epilog=f"The catalogue: {_NAMES}. A gated model asks you to accept its licence on the hub first.",
)
@click.argument("name")
def pull(name: str) -> None:
    """Fetch the model NAME into the user's cache, and print where it lies.

    NAME is one of the catalogue, OWNER/NAME of a model of the hub, or OWNER/NAME/FILE.gguf of one of its files.
    A download that broke off goes on. What is here already, in the Hugging Face cache too, is not fetched again.
    """
    from reader_edge.catalogue.pull import pulled

    click.echo(pulled(name))
