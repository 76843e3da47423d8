"""`reader-edge list`: the models in the user's cache."""

import time

import click


@click.command("list", short_help="List the models that were fetched or exported.")
def list_models() -> None:
    """List the models that were fetched or exported: what there is of each, its size, and since when."""
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
