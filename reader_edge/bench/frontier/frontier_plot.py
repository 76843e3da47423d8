"""The plots of `bench frontier`."""

from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge.bench.frontier.frontier import Frontier
from reader_edge.bench.frontier.frontier_report import WAYS
from reader_edge.bench.frontier.head import ACCURACIES
from reader_edge.bench.frontier.lossy_line import LossyLine
from reader_edge.bench.plot import new_figure, save_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_frontier(frontier: Frontier, path: Path, lossy: LossyLine | None = None) -> None:
    """Draw tokens a second over nodes and over draft memory, with a head of each cost, and what lossy ways come to."""
    num_parts = 3 + frontier.is_speculated + (lossy is not None)
    figure = new_figure(5 * num_parts, 4.5)
    nodes, stores, heads, *others = figure.subplots(1, num_parts)
    if frontier.is_speculated:
        _draw_speculated(frontier, others.pop(0))
    if lossy is not None:
        lossy.draw(others[0])
    _draw_nodes(frontier, nodes)
    _draw_stores(frontier, stores)
    _draw_heads(frontier, heads)
    save_plot(figure, path)


def _draw_nodes(frontier: Frontier, axes: "Axes") -> None:
    budgets = [point.num_nodes for point in frontier.points]
    for way in WAYS:
        axes.plot(budgets, [getattr(point, way).tokens_per_s for point in frontier.points], "o-", label=way)
    axes.axhline(frontier.paying.tokens_per_s, linestyle="--", color="tab:blue", label="ours, as many as pay")
    axes.axhline(frontier.plain_tokens_per_s, linestyle=":", color="gray", label="plain")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("drafted nodes a step")
    axes.set_ylabel("modelled tokens/s")
    axes.legend()


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
