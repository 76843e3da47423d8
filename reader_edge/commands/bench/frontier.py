"""`reader-edge bench frontier`: what drafts reach on recorded answers, and where the next gain lies."""

import json
import math
from pathlib import Path

import click

import reader_edge
from reader_edge.bench.replay.replay_plan import ReplayPlan
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_MOST_HEADS = 32


def _shares(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        shares = tuple(dict.fromkeys(float(part) for part in value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 0.02,0.1.") from None
    if len(shares) > _MOST_HEADS or not all(math.isfinite(share) and 0 <= share <= 100 for share in shares):
        raise click.BadParameter(f"{value!r} must hold numbers from 0 to 100, {_MOST_HEADS} at most.")
    return shares


@helpful_command(
    "Show what drafts reach, and what better ones would.", "reader-edge bench frontier real.jsonl smollm2:135m"
)
@click.argument("file", type=options.FILE)
@click.argument("model", type=MODEL, required=False)
@click.option(
    "--cost",
    "cost_file",
    type=options.FILE,
    help="Pass times to calculate with, as `bench cost --json` prints them. Default: this machine's, measured once.",
)
@click.option(
    "--nodes",
    default="1,2,3,5,7,11,15,23,31,47,63",
    show_default=True,
    callback=options.node_budgets,
    help="Sizes of draft trees to try, in drafted nodes.",
)
@options.replay_sources("context,history,logits")
@click.option(
    "--head",
    "head_shares",
    default="0.01,0.02,0.05,0.1,0.2",
    show_default=True,
    callback=_shares,
    help="Costs of hypothetical heads, as fractions of a one-node pass: shows how often each must be right to pay.",
)
@click.option(
    "--speculator",
    "is_speculated",
    is_flag=True,
    help="Also what the package's trained speculator reaches and would have to reach to pay; its passes are made here.",
)
@click.option(
    "--lossy",
    "lossy_file",
    type=options.FILE,
    help="Also show these ways beside the line of quality against rejections; the file is what `lossy bench --json` "
    "prints.",
)
@click.option(
    "-t",
    "--temperature",
    default=0.0,
    show_default=True,
    type=options.FiniteRange(0, 100),
    help="The temperature at which the answers were recorded.",
)
@options.engine
@options.plot
@options.as_json
@options.grouped(config="EngineConfig")
def frontier(
    file: Path,
    model: str | None,
    cost_file: Path | None,
    nodes: tuple[int, ...],
    sources: tuple[str, ...],
    head_shares: tuple[float, ...],
    is_speculated: bool,
    lossy_file: Path | None,
    temperature: float,
    config: "reader_edge.EngineConfig",
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show how fast recorded answers decode with our drafts, with better ones, and where the next gain lies.

    FILE is a recording of `bench record`; one drafter replays it from the first request to the last. Tokens per second
    are not timed but calculated, from counted steps and the pass times of MODEL, which is given as for `run`.
    """
    from reader_edge.bench.frontier.frontier_plot import draw_frontier
    from reader_edge.bench.frontier.frontier_report import frontier_fields, print_frontier
    from reader_edge.bench.frontier.judge import open_judge
    from reader_edge.bench.frontier.lossy_line import LossyLine
    from reader_edge.bench.plot import check_plot
    from reader_edge.model_source import find_package
    from reader_edge.terminal.console import count_progress
    from reader_edge_runtime.assembly import open_package

    check_plot(plot)
    lossy = None if lossy_file is None else LossyLine.read(lossy_file)
    plan = ReplayPlan((file,), None, sources, "shipped")
    package = open_package(find_package(model))
    with count_progress("Measuring passes") as on_progress:
        judge = open_judge(plan, package, config, cost_file, temperature, is_speculated, on_progress)
    with count_progress("Replays") as on_progress:
        found = judge.frontier(nodes, head_shares, on_progress)
    if as_json:
        click.echo(json.dumps(frontier_fields(found, lossy)))
    else:
        print_frontier(found, lossy)
    if plot is not None:
        draw_frontier(found, plot, lossy)
