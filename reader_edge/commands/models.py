"""`reader-edge pull`, `list`, `rm` and `cache`: the models in the user's cache, and what else is there."""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.models.catalogue import CATALOGUE
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL, STORED

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
    from reader_edge.models.pull import pulled

    click.echo(pulled(name))


@helpful_command("List the models on this machine.", "reader-edge list", name="list")
@options.as_json
def list_models(as_json: bool) -> None:
    """List the models in the cache: downloads ("source") and exported packages, with size and date."""
    from reader_edge.models.store import stored_models
    from reader_edge.terminal.console import print_columns
    from reader_edge.terminal.formatting import readable_size

    stored = [(model, part) for model in stored_models() for part in model.parts()]
    if as_json:
        parts = []
        for model, part in stored:
            changed = datetime.fromtimestamp(part.time, UTC).isoformat(timespec="seconds")
            parts.append({"name": model.name, **asdict(part), "path": str(part.path), "time": changed})
        click.echo(json.dumps({"models": parts}))
        return
    rows = [
        (
            model.name,
            f"{part.what}{', not tuned' if part.is_untuned else ''}{'' if part.is_readable else _UNREADABLE}",
            readable_size(part.num_bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(part.time)),
        )
        for model, part in stored
    ]
    if not rows:
        click.echo("No models yet: `reader-edge pull smollm2:135m` fetches one.", err=True)
        return
    print_columns([("NAME", "WHAT", "SIZE", "SINCE"), *rows])


_UNREADABLE = ", not for this version"


@helpful_command("Remove a fetched or exported model.", "reader-edge rm smollm2:135m")
@click.argument("name", type=STORED)
def rm(name: str) -> None:
    """Remove a model from the cache: its download and the packages exported from it.

    NAME is as `reader-edge list` shows it. Files of yours outside the cache stay: only packages exported from them are
    removed.
    """
    from reader_edge.models.catalogue import canonical
    from reader_edge.models.store import StoredModel
    from reader_edge.terminal.formatting import readable_size, visible

    stored = StoredModel(canonical(name))
    if not stored.is_stored and StoredModel(str(Path(name).resolve())).is_stored:
        stored = StoredModel(str(Path(name).resolve()))
    whats = [part.what for part in stored.parts()]
    num_bytes = stored.remove()
    click.echo(visible(f"Removed {stored.name}: {', '.join(whats) or 'nothing whole'}; {readable_size(num_bytes)}."))


@helpful_command("Show what the cache takes, and free some of it.", "reader-edge cache", "reader-edge cache --free")
@click.option("--free", is_flag=True, help="Remove what is unfinished, or of other versions.")
@options.as_json
def cache(free: bool, as_json: bool) -> None:
    """Show the cache's place and what lies there, with sizes.

    --free removes downloads and exports that were broken off, which would resume, and packages of other versions; what
    is whole stays (`reader-edge rm` removes models), and so do measurements and what was compiled here.
    """
    from reader_edge.models.cache import LABELS, cache_sizes, free_unused
    from reader_edge.terminal.console import print_columns
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_runtime.machine.cache_folder import cache_folder

    freed = free_unused() if free else 0
    sizes = cache_sizes()
    if as_json:
        click.echo(json.dumps({"path": str(cache_folder()), "freed": freed, "num_bytes": sizes}))
        return
    print_columns([("WHAT", "SIZE"), *((LABELS[what], readable_size(size)) for what, size in sizes.items() if size)])
    click.echo(f"In '{cache_folder()}'.", err=True)
    if free:
        click.echo(f"Freed {readable_size(freed)}.", err=True)
    elif sizes["unused"]:
        click.echo(f"`reader-edge cache --free` frees {readable_size(sizes['unused'])}.", err=True)
