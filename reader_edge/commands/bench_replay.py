"""`reader-edge bench replay`: recorded answers through the drafter alone, or through a model's real passes."""

from pathlib import Path

import click

from reader_edge.commands import options

_DATASTORE = "datastore="


def _node_budgets(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        budgets = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 8,16,64.") from None
    if not all(1 <= budget <= 255 for budget in budgets):
        raise click.BadParameter(f"{value!r} must hold numbers from 1 to 255.")
    return budgets


def _source_names(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    unknown = [name for name in names if name not in ("context", "history") and not _datastore_path(name)]
    if unknown or "context" not in names:
        raise click.BadParameter(
            f"{value!r} must be context or context,history, each with ,datastore=FILE behind it if wanted."
        )
    return names


def _datastore_path(name: str) -> str:
    """FILE of datastore=FILE, else empty."""
    return name.removeprefix(_DATASTORE) if name.startswith(_DATASTORE) else ""


@click.command("replay")
@click.argument("files", nargs=-1, required=True, type=options.FILE, metavar="FILE...")
@click.option("--model", help="Time both ways of decoding on this package's real passes.")
@click.option(
    "--tokenizer",
    help="A package, a Hugging Face folder or a tokenizer.json. Needed without --model; with it, its own by default.",
)
@click.option("--nodes", callback=_node_budgets, help="Drafted nodes a step, without --model.  [default: 8,16,64]")
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
@click.option("--stretches", type=click.IntRange(1), help="Stretches timed of each FILE, with --model.  [default: 24]")
@click.option("-n", "--max-tokens", type=click.IntRange(2), help="Tokens of a stretch, with --model.  [default: 64]")
@options.threads
@options.provider
@options.as_json
def replay_command(
    files: tuple[Path, ...],
    model: str | None,
    tokenizer: str | None,
    nodes: tuple[int, ...] | None,
    sources: tuple[str, ...],
    priors: str,
    stretches: int | None,
    max_tokens: int | None,
    threads: int,
    provider: str | None,
    as_json: bool,
) -> None:
    """Replay recorded answers: the drafter alone, or drafted against plain decoding on a model.

    FILE holds one recorded request a line: {"task": ..., "turns": [{"input": ..., "output": ...}]}. Without --model:
    the acceptance length, which is what a forward pass emits on the mean, its own token included. With --model: the
    recorded tokens are forced through the package's passes, and everything else is the decoder's own; of each FILE,
    evenly spread stretches are timed, while the history learns from all of it. The model's weights play no part.
    """
    is_history_used = "history" in sources
    datastores = tuple(filter(None, map(_datastore_path, sources)))
    if priors == "others" and len(files) < 2:
        raise click.UsageError("--priors others learns from the other FILEs: name at least two.")
    if model is None:
        if tokenizer is None:
            raise click.UsageError("Without --model, --tokenizer is needed.")
        if stretches or max_tokens or threads or provider:
            raise click.UsageError("--stretches, --max-tokens, --threads and --provider need --model.")
        _replay_drafter(files, tokenizer, nodes or (8, 16, 64), is_history_used, priors, datastores, as_json)
        return
    if nodes:
        raise click.UsageError("With --model the measured pass times choose the nodes: leave --nodes out.")

    from reader_edge.bench.model_replay_report import ReplayPlan, print_model_json, print_model_table, replay_on_model
    from reader_edge.model_source import find_package
    from reader_edge.terminal.console import count_progress
    from reader_edge_runtime.package.model_package import ModelPackage

    plan = ReplayPlan(files, tokenizer, stretches or 24, max_tokens or 64, is_history_used, priors, datastores)
    package = ModelPackage.open(find_package(model))
    package.check_files()
    with count_progress("Stretches timed") as on_progress:
        report = replay_on_model(package, plan, threads, provider, on_progress)
    if as_json:
        print_model_json(report)
    else:
        print_model_table(report)


def _replay_drafter(
    files: tuple[Path, ...],
    tokenizer: str,
    nodes: tuple[int, ...],
    is_history_used: bool,
    priors: str,
    datastores: tuple[str, ...],
    as_json: bool,
) -> None:
    from reader_edge.bench.replay_report import print_json, print_table, replay_files

    reports = replay_files(files, tokenizer, nodes, is_history_used, priors, datastores)
    if as_json:
        print_json(reports)
    else:
        print_table(reports)
