"""`reader-edge bench`: measurements of this machine, a model or a drafter."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import click

import reader_edge
from reader_edge.chat.sampling_options import MeasuredSampling
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_DATASTORE = "datastore="


@helpful_command("Show how long a pass takes here.", "reader-edge bench cost smollm2:135m")
@click.argument("model", type=MODEL, required=False)
@click.option("--batch", default=1, show_default=True, type=options.IntegerRange(1, 64), help="Sequences in a pass.")
@options.engine
@click.option("--redo", is_flag=True, help="Measure again instead of showing cached times.")
@options.as_json
@options.grouped(config="EngineConfig")
def cost(model: str | None, batch: int, config: "reader_edge.EngineConfig", redo: bool, as_json: bool) -> None:
    """Show how long a pass over n tree nodes takes on this machine. It is measured once, then cached."""
    from reader_edge.models.model_source import finder
    from reader_edge.terminal.console import count_progress, figures_table, print_report
    from reader_edge_runtime.assembly import open_package, settled_target
    from reader_edge_runtime.measuring.cost_cache import load_or_measure

    target, _ = settled_target(open_package(finder(config)(model), signature_key=config.signature_key), config)
    with count_progress("Measuring passes") as on_progress:
        measured = load_or_measure(target, config.threads, batch, is_redone=redo, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(asdict(measured) | {"seconds": measured.seconds.tolist()}))
        return
    title = f"Milliseconds of a pass, {measured.batch_size} in a batch (relative to one node)"
    table = figures_table(title, "nodes", *(f"past {past}" for past in measured.pasts))
    for column, width in enumerate(measured.widths):
        table.add_row(str(width), *(f"{1e3 * t[column]:.2f} ({t[column] / t[0]:.2f})" for t in measured.seconds))
    doubt = f"In doubt: rounds were {measured.spread:.0%} apart, as they are beside other work." * measured.is_in_doubt
    print_report(table, f"A row of logits: {1e3 * measured.row_s:.3f} ms", *filter(None, [doubt]))


@helpful_command(
    "Record plain answers, to replay them.",
    "reader-edge bench record smollm2:135m --prompts prompts.jsonl -o real.jsonl",
)
@click.argument("model", type=MODEL, required=False)
@options.prompts
@click.option("-o", "--out", required=True, type=options.FILE_PATH, help="A .jsonl file.")
@options.max_tokens(256)
@options.of(MeasuredSampling)
@options.engine
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.grouped(sampling="SamplingConfig", config="GenerationConfig", engine_config="EngineConfig")
def record(
    model: str | None,
    prompts: Path | None,
    out: Path,
    config: "reader_edge.GenerationConfig",
    engine_config: "reader_edge.EngineConfig",
    force: bool,
) -> None:
    """Answer prompts plainly and record the answers, for `bench replay`.

    A line of the file is a request in the format of `bench replay`, with token ids beside the texts and the likely
    successors of each token, so that --sources may name logits too. MODEL is what `run` takes.
    """
    from reader_edge.bench.answer_recorder import record_answers
    from reader_edge.models.model_source import load_engine
    from reader_edge.prompts import VERIFY_PROMPTS, play_out, read_prompts
    from reader_edge.terminal.console import count_progress
    from reader_edge.terminal.formatting import visible
    from reader_edge_runtime.atomic_file import mode_of_all, new_file

    if out.exists() and not force:
        raise click.UsageError(f"'{out}' exists: add --force to replace it.")
    file_prompts = read_prompts(prompts or VERIFY_PROMPTS)
    engine = load_engine(model, replace(engine_config, is_calibrated=False))
    questions = play_out(engine, file_prompts, config, is_raw=False)
    mode = mode_of_all([] if prompts is None else [prompts])
    with count_progress("Answers recorded") as on_progress, new_file(out, mode, keeps_mode=False) as file:
        for number, line in enumerate(record_answers(engine, questions, config), start=1):
            file.write(f"{line}\n".encode())
            on_progress(number, len(questions))
    click.echo(visible(f"{len(questions)} answers ({config.sampling}) in '{out}'."))


@helpful_command("Time plain and drafted decoding.", "reader-edge bench decode smollm2:135m --prompts prompts.jsonl")
@click.argument("model", type=MODEL, required=False)
@options.prompts
@options.max_tokens(128)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=options.IntegerRange(1, 1000),
    help="How often each way answers each prompt.",
)
@click.option(
    "--nodes",
    callback=options.node_budgets,
    help="Also show the acceptance length at these fixed numbers of drafted nodes a step, such as 4,8,16,64.",
)
@click.option("--each-set", is_flag=True, help="Also time each set of sources, from a request's own text alone to all.")
@options.of(MeasuredSampling)
@options.of(options.Drafts)
@options.engine
@options.plot
@options.as_json
@options.grouped(
    sampling="SamplingConfig", config="GenerationConfig", engine_config="EngineConfig", sources="DraftSources"
)
def decode(
    model: str | None,
    prompts: Path | None,
    config: "reader_edge.GenerationConfig",
    rounds: int,
    nodes: tuple[int, ...] | None,
    each_set: bool,
    sources: "reader_edge.DraftSources",
    engine_config: "reader_edge.EngineConfig",
    plot: Path | None,
    as_json: bool,
) -> None:
    """Decode prompts without and with drafting in turn; show both speeds and where the time goes.

    The timed answers learn nothing from one another. --nodes adds acceptance lengths at trees of fixed sizes, which do
    not depend on the machine: of a drafter that starts afresh for each prompt, and of one that remembers earlier
    prompts. --each-set adds the time with each set of sources. The exit code is 1 if tokens differ. MODEL is what `run`
    takes.
    """
    from reader_edge.bench.comparison import bench_decode
    from reader_edge.bench.comparison_report import bench_fields, draw_bench, print_bench
    from reader_edge.bench.fixed_budget import AvailableSources, bench_budgets
    from reader_edge.bench.plot import check_plot
    from reader_edge.models.model_source import further_sources, load_engine
    from reader_edge.prompts import VERIFY_PROMPTS, play_out, read_prompts
    from reader_edge.terminal.console import count_progress

    check_plot(plot)
    file_prompts = read_prompts(prompts or VERIFY_PROMPTS)
    engine = load_engine(model, engine_config, sources)
    questions = play_out(engine, file_prompts, config, is_raw=False)
    each_set = each_set and engine.draft_permission.is_on
    if nodes and not engine.draft_permission.is_on:
        click.echo("At fixed numbers of nodes, drafts are made all the same, to show what they would bring.", err=True)
    available = None
    if nodes or each_set:
        available = AvailableSources.of_engine(engine, sources.datastores, further_sources(engine, sources))
    with count_progress("Answers") as on_progress:
        sets = available.engines(engine) if each_set and available else {}
        bench = bench_decode(engine, questions, config, rounds, on_progress, sets)
    runs = []
    if nodes and available:
        with count_progress("Answers at fixed numbers of nodes") as on_progress:
            runs = bench_budgets(engine, questions, config, nodes, available, on_progress)
    if as_json:
        click.echo(json.dumps(bench_fields(engine, bench, runs, config)))
    else:
        print_bench(engine, bench, runs, config)
    if plot is not None:
        draw_bench(bench, plot)
    answers = tuple(rounds[0].token_ids for rounds in bench.overall.plain.rounds)
    are_sets_identical = all(each.is_identical for comparisons in bench.sets.values() for each in comparisons)
    if not (bench.overall.is_identical and are_sets_identical) or any(run.answers != answers for run in runs):
        raise click.ClickException(options.DIFFERENT_TOKENS)


def _replayed_sources(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    files = [name.removeprefix(_DATASTORE) for name in names if name.startswith(_DATASTORE)]
    known = [name for name in names if name in ("context", "history", "logits")]
    if len(known) + len(files) < len(names) or "context" not in names or "" in files:
        raise click.BadParameter(f"{value!r} must have context, and any of history,logits,datastore=FILE.")
    return names


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How answers are replayed.

    tokenizer: A tokenizer.json, or a package, Hugging Face folder, GGUF file or model name.
    nodes: Sizes of draft trees to try, in drafted nodes.
    sources: What to draft from: context, and any of history, logits and datastore=FILE, separated by commas. logits
      need a file that `bench record` wrote.
    priors: What the drafter knows at first: what it ships with, what it learns from the other FILEs, or nothing.
    """

    tokenizer: Annotated[str, MODEL]
    nodes: Annotated[str, options.node_budgets] = "8,16,64"
    sources: Annotated[str, _replayed_sources] = "context,history"
    priors: Annotated[str, ("shipped", "others", "none")] = "shipped"


@helpful_command(
    "Replay recorded answers with the drafter.",
    "reader-edge bench replay real.jsonl --tokenizer smollm2:135m",
    name="replay",
)
@click.argument("files", nargs=-1, required=True, type=options.FILE, metavar="FILE...")
@options.of(ReplayOptions)
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


@click.group()
def bench() -> None:
    """Measure this machine, a model or a drafter."""


for command in (cost, decode, record, replay_command):
    bench.add_command(command)
