"""`reader-edge list`: the models in the user's cache."""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command


@helpful_command("List the models on this machine.", "reader-edge list", name="list")
@options.as_json
def list_models(as_json: bool) -> None:
    """List the models in the cache: downloads ("source") and exported packages, with size and date."""
    from reader_edge.catalogue.store import stored_models
    from reader_edge.terminal.console import print_columns
    from reader_edge.terminal.sizes import readable_size

    stored = [(model, part) for model in stored_models() for part in model.parts()]
    if as_json:
        parts = [
            {"name": model.name, **asdict(part), "path": str(part.path), "time": _timestamp(part.time)}
            for model, part in stored
        ]
        click.echo(json.dumps({"models": parts}))
        return
    rows = [
        (
            model.name,
            f"{part.what}, not tuned" if part.is_untuned else part.what,
            readable_size(part.num_bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(part.time)),
        )
        for model, part in stored
    ]
    if not rows:
        click.echo("No models yet: `reader-edge pull smollm2:135m` fetches one.", err=True)
        return
    print_columns([("NAME", "WHAT", "SIZE", "SINCE"), *rows])


def _timestamp(seconds: float) -> str:
    """In UTC, as ISO 8601 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
