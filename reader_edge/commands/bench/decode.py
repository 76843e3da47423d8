"""`reader-edge bench decode`: plain and drafted decoding of a model, side by side."""

import json
from pathlib import Path

import click

import reader_edge
from reader_edge.chat.given_sampling import MeasuredSampling
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


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
    from reader_edge.bench.fixed_budget import SourceStock, bench_budgets
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
    stock = None
    if nodes or each_set:
        stock = SourceStock.of_engine(engine, sources.datastores, further_sources(engine, sources))
    with count_progress("Answers") as on_progress:
        sets = stock.engines(engine) if each_set and stock else {}
        bench = bench_decode(engine, questions, config, rounds, on_progress, sets)
    runs = []
    if nodes and stock:
        with count_progress("Answers at fixed numbers of nodes") as on_progress:
            runs = bench_budgets(engine, questions, config, nodes, stock, on_progress)
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
