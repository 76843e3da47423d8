"""`reader-edge list`: the models in the user's cache."""

import time

import click

from reader_edge.terminal.command_help import helpful_command


@helpful_command("List the models on this machine.", "reader-edge list", name="list")
def list_models() -> None:
    """List the models in the cache: downloads ("source") and exported packages, with size and date."""
    from reader_edge.catalogue.store import stored_models
    from reader_edge.terminal.console import print_columns
    from reader_edge.terminal.sizes import readable_size

    rows = [
        (
            model.name,
            f"{part.what}, not tuned" if part.is_untuned else part.what,
            readable_size(part.num_bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(part.time)),
        )
        for model in stored_models()
        for part in model.parts()
    ]
    if not rows:
        click.echo("No models yet: `reader-edge pull smollm2:135m` fetches one.", err=True)
        return
    print_columns([("NAME", "WHAT", "SIZE", "SINCE"), *rows])
