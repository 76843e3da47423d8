"""The page of a fleet: tables of latency by users and servers, what policies save, and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from benchmarks.fleet.comparison import SMALL, Cell, Outcome
from benchmarks.fleet.policies import BASELINES, BEST, POLICIES
from benchmarks.peers.tables import table
from reader_edge.bench.plot import new_figure, save_plot
from reader_edge_runtime.atomic_file import write_file

Outcomes = Mapping[Cell, Sequence[Outcome]]
_BATTERY_J = 15 * 3600  # of a telephone
_PAPER = (
    "The paper states that its learner and exchange are up to 28.0 % and in the mean 23.7 % below its three baselines. "
    "These differ in who talks to which server; what shares they have it does not say."
)
_GAPS = (
    "Shares above the bound are of planned rounds, the tables before of simulated answers, which wait in queues too."
)


def write_report(
    outcomes: Outcomes, exact: Mapping[tuple[str, str], Sequence[float]], head: Sequence[str], out: Path
) -> None:
    """Writes OUT.md and OUT.svg. exact: way and policy -> shares of time above the best association, one a small fleet.
    head: lines that say what was run, where and when."""
    ways = list(dict.fromkeys(way for way, *_ in outcomes))
    lines = [
        "# A fleet, simulated",
        "",
        *head,
        "",
        "## What the best policy saves",
        "",
        *_savings(outcomes, ways),
        "",
        _PAPER,
        "",
    ]
    for way in ways:
        lines += [f"## {way[0].upper()}{way[1:]}", "", *_latencies(outcomes, way), ""]
    lines += ["## Above the bound, and of the battery", "", _GAPS, "", *_gaps(outcomes, ways), ""]
    lines += [f"Small fleets, {SMALL[0]} users on {SMALL[1]} servers, above the best of all associations:", ""]
    lines += [*_exact_gaps(exact), ""]
    lines += [f"![mean latency over users]({out.name}.svg)", ""]
    write_file(out.with_suffix(".md"), "\n".join(lines).encode())
    _draw(outcomes, ways, out.with_suffix(".svg"))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and by how much it may be off, with 95 % confidence (Student's t)."""
    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)), half


def saved(outcomes: Outcomes, way: str, baseline: str) -> list[tuple[float, float]]:
    """By how much the best policy's mean latency is below a baseline's: mean and interval, for each size of fleet."""
    savings = []
    for name, users, servers, policy in outcomes:
        if (name, policy) == (way, BEST):
            others = outcomes[way, users, servers, baseline]
            pairs = zip(outcomes[way, users, servers, BEST], others, strict=True)
            savings.append(interval([1 - mine.mean_s / other.mean_s for mine, other in pairs]))
    return savings


def _savings(outcomes: Outcomes, ways: Sequence[str]) -> list[str]:
    rows = []
    for way in ways:
        cells = []
        for baseline in (*BASELINES, "exchange"):
            savings = saved(outcomes, way, baseline)
            most = max(savings)
            cells.append(f"{np.mean([mean for mean, _ in savings]):.1%}; {most[0]:.1%} ± {most[1]:.1%}")
        rows.append([way, *cells])
    return table(["mean over sizes; the most", *(f"below {name}" for name in (*BASELINES, "exchange"))], rows)


def _latencies(outcomes: Outcomes, way: str) -> list[str]:
    rows = []
    for users, servers in dict.fromkeys((users, servers) for name, users, servers, _ in outcomes if name == way):
        cells = []
        for policy in POLICIES:
            of_policy = outcomes[way, users, servers, policy]
            mean, half = interval([outcome.mean_s for outcome in of_policy])
            tail, tail_half = interval([outcome.p95_s for outcome in of_policy])
            cells.append(f"{mean:.3g} ± {half:.2g}; {tail:.3g} ± {tail_half:.2g}")
        rows.append([f"{users} on {servers}", *cells])
    return table(["mean; p95, s", *POLICIES], rows)


def _gaps(outcomes: Outcomes, ways: Sequence[str]) -> list[str]:
    rows = []
    for way in ways:
        gaps = []
        for policy in POLICIES:
            of_policy = [each for cell, of in outcomes.items() if cell[0] == way and cell[3] == policy for each in of]
            gaps.append(f"{np.mean([outcome.gap for outcome in of_policy]):.1%}")
        joules = np.mean(
            [each.joules for cell, of in outcomes.items() if (cell[0], cell[3]) == (way, BEST) for each in of]
        )
        rows.append([way, *gaps, f"{joules:.2g}", f"{_BATTERY_J / joules:.2g}"])
    return table(["", *POLICIES, "joules an answer", "answers a battery"], rows)


def _exact_gaps(exact: Mapping[tuple[str, str], Sequence[float]]) -> list[str]:
    ways = dict.fromkeys(way for way, _ in exact)
    cells = {key: "{:.1%} ± {:.1%}".format(*interval(gaps)) for key, gaps in exact.items()}
    return table(["", *POLICIES], [[way, *(cells[way, policy] for policy in POLICIES)] for way in ways])


def _draw(outcomes: Outcomes, ways: Sequence[str], path: Path) -> None:
    """A panel a way, with the fewest servers: latencies over users."""
    figure = new_figure(3.2 * len(ways), 3.4)
    for axes, way in zip(figure.subplots(1, len(ways), squeeze=False)[0], ways, strict=True):
        fewest = min(servers for name, _, servers, _ in outcomes if name == way)
        for policy in POLICIES:
            points = [
                (cell[1], *interval([each.mean_s for each in of]))
                for cell, of in outcomes.items()
                if (cell[0], cell[2], cell[3]) == (way, fewest, policy)
            ]
            users, means, halves = zip(*points, strict=True)
            axes.errorbar(users, means, yerr=halves, marker="o", markersize=3, capsize=2, label=policy)
        axes.set_title(f"{way}, {fewest} servers")
        axes.set_xlabel("users")
        axes.set_ylim(bottom=0)
    figure.axes[0].set_ylabel("mean latency of an answer, s")
    figure.axes[0].legend(fontsize="small")
    save_plot(figure, path)
