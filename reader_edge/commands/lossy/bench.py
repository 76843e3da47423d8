"""`reader-edge lossy bench`: what lossy rules bring and cost, on tasks whose answers can be checked."""

import json
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.commands.lossy.rules import RULES, strength_of
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge_runtime.lossy.strength import Strength

_DEFAULT = ("relaxed:0.69:0.02", "relaxed:2.3:0.1", "big-little:2:0.6")


_FORMS = "relaxed:GAP:BUDGET, big-little:DISTANCE:CONFIDENCE, judge:FILE:THRESHOLD or views:CONTEXT:WEIGHT"


def _strengths(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, "Strength"]:
    """By name; lists of figures come to every pair of them."""
    strengths: dict[str, Strength] = {}
    for value in values or _DEFAULT:
        name, _, figures = value.partition(":")
        first, _, second = figures.rpartition(":")
        try:
            firsts = [first] if name == "judge" and first else [f"{float(each):g}" for each in first.split(",")]
            seconds = [float(each) for each in second.split(",")]
        except ValueError:
            name, firsts, seconds = "", [], []
        if name not in RULES:
            raise click.BadParameter(f"{value!r} must be {_FORMS}.")
        for each, other in product(firsts, seconds):
            strengths[f"{name}:{each}:{other:g}"] = strength_of(name, each, other)
    return strengths


@helpful_command(
    "Measure what lossy rules bring and cost.",
    "reader-edge lossy bench smollm2:135m --try relaxed:0.69:0.02 --try big-little:2:0.6",
)
@click.argument("model", type=MODEL, required=False)
@click.option(
    "--try",
    "strengths",
    multiple=True,
    metavar="RULE:...",
    callback=_strengths,
    help=f"A rule and its strength, {_FORMS}, as of `lossy run`; may be repeated. Lists, as big-little:2,5:0.3,0.6, "
    f"try every pair. Default: {', '.join(_DEFAULT)}.",
)
@click.option(
    "--tasks",
    "num_tasks",
    type=options.IntegerRange(5, 10_000),
    default=300,
    show_default=True,
    help="Tasks to answer.",
)
@click.option(
    "--seed",
    type=options.IntegerRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="The same seed gives the same tasks.",
)
@click.option(
    "--rounds",
    type=options.IntegerRange(1, 1000),
    default=3,
    show_default=True,
    help="Rounds, all ways in turn in each.",
)
@click.option("--long", "is_long", is_flag=True, help="Ask for facts hidden in 600 to 1,400 tokens of filler instead.")
@click.option(
    "--retrieved",
    "retrieved_tokens",
    type=options.IntegerRange(64),
    metavar="N",
    help="Answer exactly, but from the N tokens alone that `views` would retrieve, too.",
)
@click.option("--plain", is_flag=True, help="Answer without drafts, too.")
@options.draft_model
@options.head
@options.no_speculator
@options.no_calibrate
@options.engine
@options.as_json
@options.grouped(engine_config="EngineConfig", sources="DraftSources")
def bench(
    model: str | None,
    strengths: "dict[str, Strength]",
    num_tasks: int,
    seed: int,
    rounds: int,
    is_long: bool,
    retrieved_tokens: int | None,
    plain: bool,
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    as_json: bool,
) -> None:
    """Answer generated tasks exactly and by lossy rules: quality beside speed, paired task by task.

    The tasks are lookups, copying, editing, JSON fields and short arithmetic, which a model of 135 million parameters
    gets right in about three cases of four; those of --long are lookups in long prompts, where it gets three of five.
    Each answer begins with nothing remembered of the others.

    MODEL is given as for `run`. --no-calibrate makes answers repeatable: measured pass times decide what is drafted.
    """
    from reader_edge.lossy.long_tasks import long_tasks
    from reader_edge.lossy.lossy_report import bench_fields, print_bench
    from reader_edge.lossy.tasks import tasks
    from reader_edge.lossy.trial import Way, try_ways
    from reader_edge.lossy.way_figures import way_figures
    from reader_edge.model_source import load_engine, load_with
    from reader_edge.terminal.console import count_progress
    from reader_edge_runtime.lossy.lossy_engine import LossyEngine

    exact = load_engine(model, engine_config, sources)
    ways = [Way("exact", exact), *([Way("plain", exact, is_drafted=False)] if plain else [])]
    if retrieved_tokens is not None:
        ways.append(Way(f"retrieved:{retrieved_tokens}", exact, context=retrieved_tokens))
    for name, strength in strengths.items():
        load = partial(LossyEngine.load, strength=strength)
        ways.append(Way(name, load_with(load, model, engine_config, sources)))
    with count_progress("Answers") as on_progress:
        try_ways(ways, (long_tasks if is_long else tasks)(num_tasks, seed), rounds, on_progress)
    figures = [way_figures(way, ways[0]) for way in ways]
    if as_json:
        click.echo(json.dumps(bench_fields(figures)))
    else:
        print_bench(figures)
