"""What `lossy bench` tells: quality beside speed, each way paired with exact answers."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from reader_edge.lossy.way_figures import WayFigures
from reader_edge.terminal.console import figures_table, print_report

NOTE = (
    "All answers are greedy, whatever the model recommends, and paired with those of the first way: lost are right "
    "there alone, won here alone; p is the chance that luck splits them so (McNemar). Seconds are of all answers: the "
    "median of the rounds, and its quartiles."
)


def bench_fields(figures: Sequence[WayFigures]) -> dict[str, object]:
    """All figures, ready for JSON; the first way is what others are paired with."""
    ways = [asdict(each) | {"tokens_per_step": each.tokens_per_step} for each in figures]
    return {"note": NOTE, "tasks": figures[0].tasks, "ways": ways}


def print_bench(figures: Sequence[WayFigures]) -> None:
    """Print the figures as tables, on standard output."""
    print_report(_quality_table(figures), _speed_table(figures), NOTE)


def _quality_table(figures: Sequence[WayFigures]) -> Table:
    title = f"How many of {figures[0].tasks} generated tasks are right"
    table = figures_table(title, "way", "right %", "95 %", "lost", "won", "p", "same %", *figures[0].kinds)
    for each in figures:
        low, high = each.interval
        paired = (f"{100 * low:.1f}-{100 * high:.1f}", str(each.lost), str(each.won), f"{each.p:.2f}")
        kinds = (f"{kind.right} of {kind.tasks}" for kind in each.kinds.values())
        table.add_row(each.way, _percent(each.right, each.tasks), *paired, _percent(each.same, each.tasks), *kinds)
    return table


def _speed_table(figures: Sequence[WayFigures]) -> Table:
    title = "What speed was bought, and for what"
    columns = ("tokens a step", "changed %", "nats a token", "repeated 4-grams %", "seconds", "times as fast")
    table = figures_table(title, "way", *columns)
    for each in figures:
        low, high = each.seconds_quartiles
        given_up = (
            _percent(each.changed, each.tokens),
            f"{each.nats_per_token:.4f}",
            f"{100 * each.repeated_4grams:.1f}",
        )
        seconds = f"{each.seconds:.1f} ({low:.1f}-{high:.1f})"
        table.add_row(
            each.way, f"{each.tokens_per_step:.2f}", *given_up, seconds, f"{figures[0].seconds / each.seconds:.2f}"
        )
    return table


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}"
