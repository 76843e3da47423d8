"""`reader-edge bench replay`: the drafter on recorded answers, without a model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from reader_edge.replay_report import FileReport

_DATASTORE = "datastore="
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _node_budgets(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        budgets = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 8,16,64.") from None
    if not all(1 <= budget <= 255 for budget in budgets):
        raise click.BadParameter(f"{value!r} must hold numbers from 1 to 255.")
    return budgets


def _source_names(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    unknown = [name for name in names if name not in ("context", "history") and not name.startswith(_DATASTORE)]
    if unknown or "context" not in names:
        raise click.BadParameter(
            f"{value!r} must be context or context,history, each with ,datastore=FILE behind it if wanted."
        )
    return names


@click.command("replay")
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@click.option("--tokenizer", required=True, help="A package, a Hugging Face folder or a tokenizer.json.")
@click.option("--nodes", default="8,16,64", show_default=True, callback=_node_budgets, help="Drafted nodes a step.")
@click.option(
    "--sources",
    default="context,history",
    show_default=True,
    callback=_source_names,
    help="context, and behind it, with commas: history, datastore=FILE (up to 4).",
)
@click.option(
    "--priors",
    type=click.Choice(["shipped", "others", "none"]),
    default="shipped",
    show_default=True,
    help="What the drafter knows at first: what it ships with, what it learns from the other FILEs, or nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay_command(
    files: tuple[Path, ...],
    tokenizer: str,
    nodes: tuple[int, ...],
    sources: tuple[str, ...],
    priors: str,
    as_json: bool,
) -> None:
    """Replay recorded answers through the drafter, without a model.

    FILE holds one recorded request a line: {"task": ..., "turns": [{"input": ..., "output": ...}]}. The acceptance
    length is what a forward pass emits on the mean, its own token included.
    """
    from reader_edge.replay_report import print_json, print_table, replay_files

    reports: list[FileReport] = replay_files(
        files,
        tokenizer,
        nodes,
        "history" in sources,
        priors,
        [name.removeprefix(_DATASTORE) for name in sources if name.startswith(_DATASTORE)],
    )
    if as_json:
        print_json(reports)
    else:
        print_table(reports)
