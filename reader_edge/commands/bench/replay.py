"""`reader-edge bench replay`: recorded answers through the drafter alone, or through a model's real passes."""

import json

import click

import reader_edge
from reader_edge.bench.replay.replay_plan import ReplayPlan
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


@helpful_command(
    "Replay recorded answers with the drafter.",
    "reader-edge bench replay real.jsonl --tokenizer smollm2:135m",
    name="replay",
)
@click.argument("files", nargs=-1, required=True, type=options.FILE, metavar="FILE...")
@click.option(
    "--model", type=MODEL, help="Time plain and drafted decoding on the passes of this MODEL, given as for `run`."
)
@click.option(
    "--tokenizer",
    type=MODEL,
    help="A tokenizer.json, or a package, Hugging Face folder, GGUF file or model name. Needed without --model; "
    "by default that of --model.",
)
@click.option(
    "--nodes",
    callback=options.node_budgets,
    help="Sizes of draft trees to try, without --model.  [default: 8,16,64]",
)
@options.replay_sources("context,history")
@click.option(
    "--priors",
    type=click.Choice(["shipped", "others", "none"]),
    default="shipped",
    show_default=True,
    help="What the drafter knows at first: what it ships with, what it learns from the other FILEs, or nothing.",
)
@click.option(
    "--stretches", type=options.IntegerRange(1), help="Stretches to time per FILE, with --model.  [default: 24]"
)
@click.option(
    "-n", "--max-tokens", type=options.IntegerRange(2), help="Tokens per stretch, with --model.  [default: 64]"
)
@options.threads
@options.provider
@options.as_json
@options.grouped(plan=ReplayPlan, config="EngineConfig")
def replay_command(
    plan: ReplayPlan,
    model: str | None,
    nodes: tuple[int, ...] | None,
    stretches: int | None,
    max_tokens: int | None,
    config: "reader_edge.EngineConfig",
    as_json: bool,
) -> None:
    """Replay recorded answers through the drafter alone, or time drafted against plain decoding of them.

    FILE holds one recorded request per line: {"task": ..., "turns": [{"input": ..., "output": ...}]}.

    Without --model, no model runs. The result is the acceptance length: the mean number of tokens emitted per pass.

    With --model, the package's passes run and are timed, but the recorded tokens decide what is accepted: the package's
    weights do not matter. Stretches of answers, spread evenly over each FILE, are timed; the history learns from all
    answers.
    """
    if plan.priors == "others" and len(plan.files) < 2:
        raise click.UsageError("--priors others learns from the other FILEs: name at least two.")
    if model is not None:
        if nodes:
            raise click.UsageError("With --model the measured pass times choose the nodes: leave --nodes out.")
        if plan.is_logits_used:
            raise click.UsageError("With --model another model's passes are timed: leave logits out of --sources.")
        _replay_on_model(model, plan, config, stretches or 24, max_tokens or 64, as_json)
    elif plan.tokenizer is None:
        raise click.UsageError("Without --model, --tokenizer is needed.")
    elif stretches or max_tokens or config.threads or config.provider:
        raise click.UsageError("--stretches, --max-tokens, --threads and --provider need --model.")
    else:
        _replay_drafter(plan, plan.tokenizer, nodes or (8, 16, 64), as_json)


def _replay_on_model(
    model: str, plan: ReplayPlan, config: "reader_edge.EngineConfig", stretches: int, max_tokens: int, as_json: bool
) -> None:
    from reader_edge.bench.replay.model_replay import replay_on_model
    from reader_edge.bench.replay.replay_report import model_replay_fields, print_model_replays
    from reader_edge.model_source import find_package
    from reader_edge.terminal.console import count_progress
    from reader_edge_runtime.assembly import open_package

    package = open_package(find_package(model))
    with count_progress("Stretches timed") as on_progress:
        report = replay_on_model(package, plan, config, stretches, max_tokens, on_progress)
    if as_json:
        click.echo(json.dumps(model_replay_fields(report)))
    else:
        print_model_replays(report)


def _replay_drafter(plan: ReplayPlan, tokenizer: str, nodes: tuple[int, ...], as_json: bool) -> None:
    from reader_edge.bench.replay.replay import replay_files
    from reader_edge.bench.replay.replay_report import print_replays, replay_fields

    files = replay_files(plan, tokenizer, nodes)
    if as_json:
        click.echo(json.dumps({"files": [replay_fields(*file) for file in files]}))
    else:
        print_replays(files)
