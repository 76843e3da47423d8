"""What `bench frontier` tells: fields and tables."""

from rich.table import Table

from reader_edge.bench.frontier.draft_stores import UNITS
from reader_edge.bench.frontier.frontier import Frontier, Reach, Speculated
from reader_edge.bench.frontier.head import ACCURACIES
from reader_edge.bench.frontier.lossy_line import LossyLine
from reader_edge.bench.frontier.next_gain import next_gain_sentence, next_gains
from reader_edge.terminal.console import figures_table, print_report

NOTE = (
    "Modelled: tokens are those of recorded answers, and a step takes what its pass took when it was measured, and its "
    "drafting here. Ours are our trees; best, the right ones of their 255 likeliest candidates; oracle, the answer."
)
WAYS = ("ours", "best", "oracle")


def frontier_fields(frontier: Frontier, lossy: LossyLine | None = None) -> dict[str, object]:
    """All figures, ready for JSON. lossy: where lossy ways lie beside the line of quality against rejections."""
    return {
        **({} if lossy is None else {"lossy": lossy.fields()}),
        "note": NOTE,
        "past": frontier.curve.past,
        "plain_tokens_per_s": frontier.plain_tokens_per_s,
        "points": [
            {
                "nodes": point.num_nodes,
                "pass_s": float(frontier.curve.seconds[point.num_nodes + 1]),
                **{way: _reach_fields(getattr(point, way)) for way in WAYS},
                **({} if point.speculated is None else {"speculated": _speculated_fields(point.speculated)}),
            }
            for point in frontier.points
        ],
        "paying": _reach_fields(frontier.paying),
        "fastest_nodes": frontier.fastest.num_nodes,
        "stores": [
            {
                "store": each.size.store,
                "amount": each.size.amount,
                "bytes": each.num_bytes,
                **_reach_fields(each.reach),
            }
            for each in frontier.stores
        ],
        "heads": [
            {
                "share": each.share,
                "needed": each.acceptance if each.can_pay else None,
                "tokens_per_s": dict(zip(map(str, ACCURACIES), each.tokens_per_s, strict=True)),
            }
            for each in frontier.heads
        ],
        "gains": {gain.name: gain.times for gain in next_gains(frontier)},
        "next_gain": next_gain_sentence(frontier),
    }


def _reach_fields(reach: Reach) -> dict[str, object]:
    rejections = reach.rejections
    return {
        "tokens_per_s": reach.tokens_per_s,
        "acceptance_length": reach.stats.acceptance_length,
        "acceptance_length_by_task": {
            task: stats.acceptance_length for task, stats in sorted(reach.stats_by_task.items())
        },
        "steps": reach.stats.num_steps,
        "beside_s": reach.beside_s,
        "rejections": {
            "tokens": rejections.num_tokens,
            "counted": rejections.counted,
            "expected": rejections.expected,
        },
    }


def _speculated_fields(speculated: Speculated) -> dict[str, object]:
    return {
        "asked": _reach_fields(speculated.asked),
        "without": _reach_fields(speculated.without),
        "needed_acceptance_length": speculated.needed,
    }


def print_frontier(frontier: Frontier, lossy: LossyLine | None = None) -> None:
    """Print the frontier as tables, and where the next gain lies, on standard output."""
    tables = [_nodes_table(frontier), _tasks_table(frontier), _stores_table(frontier), _heads_table(frontier)]
    tables += [_speculated_table(frontier)] + ([] if lossy is None else [lossy.table()])
    print_report(*(table for table in tables if table.rows), NOTE, next_gain_sentence(frontier))


def _nodes_table(frontier: Frontier) -> Table:
    title = (
        f"Tokens a pass and modelled tokens/s by drafted nodes a step, behind {frontier.curve.past} tokens on the mean"
    )
    figures = ["pass ms", "ours", "tokens/s", "rejected %", "expected %", "best", "tokens/s", "oracle", "tokens/s"]
    table = figures_table(title, "nodes", *figures)
    seconds = frontier.curve.seconds
    table.add_row("0 (plain)", f"{1e3 * seconds[1]:.2f}", "1.00", f"{frontier.plain_tokens_per_s:.1f}")
    for point in frontier.points:
        pass_ms = f"{1e3 * seconds[point.num_nodes + 1]:.2f}"
        others = [*_speed_cells(point.best), *_speed_cells(point.oracle)]
        table.add_row(str(point.num_nodes), pass_ms, *_speed_cells(point.ours), *_rejected_cells(point.ours), *others)
    table.add_section()
    paying = frontier.paying
    pass_ms = f"{1e3 * paying.passes_s / paying.stats.num_steps:.2f}"
    table.add_row("as many as pay", pass_ms, *_speed_cells(paying), *_rejected_cells(paying))
    return table


def _speed_cells(reach: Reach) -> tuple[str, str]:
    return f"{reach.stats.acceptance_length:.2f}", f"{reach.tokens_per_s:.1f}"


def _rejected_cells(reach: Reach) -> tuple[str, str]:
    """Rejections of a hundred tokens: counted, and the sum of total variations."""
    rejections = reach.rejections
    percents = (100 * number / max(1, rejections.num_tokens) for number in (rejections.counted, rejections.expected))
    counted, expected = (f"{percent:.1f}" for percent in percents)
    return counted, expected


def _tasks_table(frontier: Frontier) -> Table:
    """Of each task at the fastest number of nodes; empty where there is one task alone."""
    point = frontier.fastest
    table = figures_table(f"Tokens a pass at {point.num_nodes} nodes", "task", *WAYS)
    tasks = sorted(point.ours.stats_by_task)
    for task in tasks if len(tasks) > 1 else []:
        reaches = (point.ours, point.best, point.oracle)
        table.add_row(task, *(f"{reach.stats_by_task[task].acceptance_length:.2f}" for reach in reaches))
    return table


def _stores_table(frontier: Frontier) -> Table:
    title = f"Draft memory at {frontier.fastest.num_nodes} nodes, one store after another in other sizes"
    table = figures_table(title, "store", "room for", "MB", "tokens a pass", "tokens/s")
    for each in frontier.stores:
        amount = f"{each.size.amount} {UNITS[each.size.store]}"
        table.add_row(each.size.store, amount, f"{each.num_bytes / 1e6:.1f}", *_speed_cells(each.reach))
    return table


def _heads_table(frontier: Frontier) -> Table:
    ours = frontier.fastest.ours.stats
    missed = 1 - ours.accepted_by_depth[1] / ours.num_steps
    title = f"A head at {frontier.fastest.num_nodes} nodes, asked in every step; ours miss {missed:.0%} of next tokens"
    speeds = (f"tokens/s if right in {right:.0%}" for right in ACCURACIES)
    needed = "must be right in so many of these to break even"
    table = figures_table(title, "its share of a one-node pass", needed, *speeds)
    for each in frontier.heads:
        acceptance = f"{each.acceptance:.1%}" if each.can_pay else "cannot pay"
        table.add_row(f"{each.share:g}", acceptance, *(f"{speed:.1f}" for speed in each.tokens_per_s))
    return table


def _speculated_table(frontier: Frontier) -> Table:
    """Empty where the speculator was not asked."""
    title = "The package's speculator, asked in every step, each answer drafted afresh: tokens a pass, and tokens/s"
    table = figures_table(title, "nodes", "without", "tokens/s", "with", "tokens/s", "needed to be as fast")
    for point in frontier.points:
        if (both := point.speculated) is not None:
            cells = *_speed_cells(both.without), *_speed_cells(both.asked)
            table.add_row(str(point.num_nodes), *cells, f"{both.needed:.2f}")
    return table
