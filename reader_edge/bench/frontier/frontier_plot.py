"""The plots of `bench frontier`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge.bench.frontier.frontier import Frontier
from reader_edge.bench.frontier.frontier_report import WAYS
from reader_edge.bench.frontier.head import ACCURACIES
from reader_edge.bench.frontier.lossy_line import LossyLine
from reader_edge.bench.plot import new_figure, save_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_IN_A_ROW = 3  # more would be too small to read on a page


def draw_frontier(frontier: Frontier, path: Path, lossy: LossyLine | None = None) -> None:
    """Draw tokens a second over nodes and over draft memory, with a head of each cost, and what lossy ways come to."""
    parts: list[Callable[[Axes], None]] = [partial(part, frontier) for part in (_draw_nodes, _draw_stores, _draw_heads)]
    if frontier.is_speculated:
        parts.append(partial(_draw_speculated, frontier))
    if lossy is not None:
        parts.append(lossy.draw)
    num_rows = -(-len(parts) // _MOST_IN_A_ROW)
    num_columns = -(-len(parts) // num_rows)
    figure = new_figure(5.5 * num_columns, 4.5 * num_rows)
    for number, part in enumerate(parts):
        part(figure.add_subplot(num_rows, num_columns, number + 1))
    save_plot(figure, path)


def _draw_nodes(frontier: Frontier, axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    budgets = [point.num_nodes for point in frontier.points]
    for way in WAYS:
        axes.plot(budgets, [getattr(point, way).tokens_per_s for point in frontier.points], "o-", label=way)
    axes.axhline(frontier.paying.tokens_per_s, linestyle="--", color="tab:blue", label="ours, as many as pay")
    axes.axhline(frontier.plain_tokens_per_s, linestyle=":", color="gray", label="plain")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("drafted nodes a step")
    axes.set_ylabel("modelled tokens/s")
    axes.set_title("ours, the best of our candidates, the answer itself")
    axes.legend(fontsize="small")


def _draw_stores(frontier: Frontier, axes: "Axes") -> None:
    for store in dict.fromkeys(each.size.store for each in frontier.stores):
        points = [each for each in frontier.stores if each.size.store == store]
        speeds = [each.reach.tokens_per_s for each in points]
        axes.plot([each.num_bytes / 1e6 for each in points], speeds, "o-", label=store)
    axes.set_xlabel("MB of one store")
    axes.set_ylabel("modelled tokens/s")
    axes.set_title("draft memory")
    if frontier.stores:
        axes.legend()


def _draw_heads(frontier: Frontier, axes: "Axes") -> None:
    shares = [each.share for each in frontier.heads]
    for number, right in enumerate(ACCURACIES):
        axes.plot(shares, [each.tokens_per_s[number] for each in frontier.heads], "o-", label=f"right in {right:.0%}")
    axes.axhline(frontier.fastest.ours.tokens_per_s, linestyle="--", color="gray", label="without a head")
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("a head's share of a one-node pass")
    axes.set_ylabel("modelled tokens/s")
    axes.set_title("a head, by how often it knows what ours miss")
    axes.legend()


def _draw_speculated(frontier: Frontier, axes: "Axes") -> None:
    both = {point.num_nodes: point.speculated for point in frontier.points if point.speculated is not None}
    lines = {
        "without": [each.without.stats.acceptance_length for each in both.values()],
        "with the speculator": [each.asked.stats.acceptance_length for each in both.values()],
        "needed to be as fast": [each.needed for each in both.values()],
    }
    for (label, lengths), style in zip(lines.items(), ("o-", "s-", "k--"), strict=True):
        axes.plot(list(both), lengths, style, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("drafted nodes a step")
    axes.set_ylabel("tokens a pass")
    axes.set_title("the speculator, asked in every step")
    axes.legend()
