"""`reader-edge bench replay`: recorded answers through the drafter alone."""

import json
from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_DATASTORE = "datastore="


def _sources(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    files = [name.removeprefix(_DATASTORE) for name in names if name.startswith(_DATASTORE)]
    known = [name for name in names if name in ("context", "history", "logits")]
    if len(known) + len(files) < len(names) or "context" not in names or "" in files:
        raise click.BadParameter(f"{value!r} must have context, and any of history,logits,datastore=FILE.")
    return names


@helpful_command(
    "Replay recorded answers with the drafter.",
    "reader-edge bench replay real.jsonl --tokenizer smollm2:135m",
    name="replay",
)
@click.argument("files", nargs=-1, required=True, type=options.FILE, metavar="FILE...")
@click.option(
    "--tokenizer",
    type=MODEL,
    required=True,
    help="A tokenizer.json, or a package, Hugging Face folder, GGUF file or model name.",
)
@click.option(
    "--nodes",
    default="8,16,64",
    show_default=True,
    callback=options.node_budgets,
    help="Sizes of draft trees to try, in drafted nodes.",
)
@click.option(
    "--sources",
    default="context,history",
    show_default=True,
    callback=_sources,
    help="What to draft from: context, and any of history, logits and datastore=FILE, separated by commas. logits need "
    "a file that `bench record` wrote.",
)
@click.option(
    "--priors",
    type=click.Choice(["shipped", "others", "none"]),
    default="shipped",
    show_default=True,
    help="What the drafter knows at first: what it ships with, what it learns from the other FILEs, or nothing.",
)
@options.as_json
def replay_command(
    files: tuple[Path, ...],
    tokenizer: str,
    nodes: tuple[int, ...],
    sources: tuple[str, ...],
    priors: str,
    as_json: bool,
) -> None:
    """Replay recorded answers through the drafter. No model runs.

    FILE holds one recorded request per line: {"task": ..., "turns": [{"input": ..., "output": ...}]}.

    The result is the acceptance length: the mean number of tokens emitted per pass.
    """
    from reader_edge.bench.replay import print_replays, replay_fields, replay_files

    if priors == "others" and len(files) < 2:
        raise click.UsageError("--priors others learns from the other FILEs: name at least two.")
    datastores = [name.removeprefix(_DATASTORE) for name in sources if name.startswith(_DATASTORE)]
    replayed = replay_files(files, tokenizer, sources, datastores, priors, nodes)
    if as_json:
        click.echo(json.dumps({"files": [replay_fields(*file) for file in replayed]}))
    else:
        print_replays(replayed)
