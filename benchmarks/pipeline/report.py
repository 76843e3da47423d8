"""Writes the tables of `benchmarks.pipeline` (a model split over machines), and the plot of the first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pipeline.pass_parts import PassParts
from reader_edge.bench.plot import new_figure, save_plot
from reader_edge_runtime.atomic_file import write_file

KINDS = "plain", "one pass", "two passes"  # a step


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """kind: one of KINDS; all but plain ones are drafted. tokens_per_s: of all requests. length: tokens a step of each.
    nodes: of its trees. step_ms: of its passes, as far as they were waited for."""

    num_stages: int
    latency_ms: float
    kind: str
    num_requests: int
    tokens_per_s: float
    length: float
    nodes: float
    step_ms: float
    is_same: bool


def write_report(
    rows: Sequence[PipelineRow], parts: Sequence[PassParts], several: Sequence[PipelineRow], out: Path
) -> None:
    """Writes OUT.md and OUT.svg."""
    lines = [*_latencies(rows, parts), "", *_several(several), "", *_parts(parts), ""]
    lines.append(f"![tokens a second over the latency of a link]({out.name}.svg)")
    write_file(out.with_suffix(".md"), ("\n".join(lines) + "\n").encode())
    draw(rows, out.with_suffix(".svg"))


def _latencies(rows: Sequence[PipelineRow], parts: Sequence[PassParts]) -> Iterator[str]:
    """Step times beside stages and links, without and with the fixed costs of a pass, and by how much these are off;
    speed-ups beside those of DSD's formula.

    T = k·t0 + (N-1)·t1 for k tokens instead of k·(t0 + (N-1)·t1), t0 being a plain pass of the stages and t1 a link.
    """
    yield (
        "| stages | link ms | | tokens/s | a step | nodes | step ms | stages + links | and fixed costs, off by "
        "| drafted/plain | DSD | two passes/one | same |"
    )
    yield "|---" * 13 + "|"
    parts_of = {each.num_stages: each for each in parts}
    known_rows = {(row.num_stages, row.latency_ms, row.kind): row for row in rows}
    for row in rows:
        before = known_rows[row.num_stages, row.latency_ms, "plain"]
        one = known_rows.get((row.num_stages, row.latency_ms, "one pass"))
        known = parts_of.get(row.num_stages)
        t0 = before.step_ms if known is None else known.stages_ms
        t1, k = row.latency_ms, row.length
        ways = row.num_stages * t1 if row.num_stages > 1 else 0.0
        hops = (row.num_stages - 1) * t1
        cells = [f"{row.num_stages} | {row.latency_ms:g} | {row.kind} | {row.tokens_per_s:.1f} | {k:.2f}"]
        cells.append(f"{row.nodes:.1f} | {row.step_ms:.1f}")
        expected_ms = row.step_ms if known is None else known.expected_ms(t1)
        off = "" if known is None else f"{expected_ms:.1f}, {expected_ms / row.step_ms - 1:+.1%}"
        cells.append(f"{t0 + ways:.1f} | {off}" if row.kind == "plain" else " | ")
        gain, formula = row.tokens_per_s / before.tokens_per_s, k * (t0 + hops) / (k * t0 + hops)
        cells.append(" | " if row.kind == "plain" else f"{gain:.2f} | {formula:.2f}")
        cells.append(f"{row.tokens_per_s / one.tokens_per_s:.3f}" if row.kind == "two passes" and one else "")
        yield f"| {' | '.join(cells)} | {'yes' if row.is_same else 'NO'} |"


def _several(rows: Sequence[PipelineRow]) -> Iterator[str]:
    yield "| stages | link ms | requests together | tokens/s, prompts included | of one request's | same |"
    yield "|---|---|---|---|---|---|"
    one = {row.num_stages: row.tokens_per_s for row in rows if row.num_requests == 1}
    for row in rows:
        gain = f"{row.tokens_per_s / one[row.num_stages]:.2f}" if row.num_stages in one else ""
        cells = f"{row.tokens_per_s:.1f} | {gain} | {'yes' if row.is_same else 'NO'}"
        yield f"| {row.num_stages} | {row.latency_ms:g} | {row.num_requests} | {cells} |"


def _parts(parts: Sequence[PassParts]) -> Iterator[str]:
    yield "| number | one box ms | stages | ring on loopback | rested | a stage more | frame bytes | bytes a node |"
    yield "|---" * 8 + "|"
    for each in parts:
        overhead = (each.ring_ms - each.one_box_ms) / (each.num_stages - 1)
        cells = (
            f"{each.one_box_ms:.2f} | {each.stages_ms:.2f} | {each.ring_ms:.2f} | {each.rested_ms:.2f} | {overhead:.2f}"
        )
        yield f"| {each.num_stages} | {cells} | {each.frame_bytes} | {each.stream_bytes} |"


def draw(rows: Sequence[PipelineRow], path: Path) -> None:
    """Tokens a second over the latency of a link, and what drafting brings; a colour for each number of stages."""
    figure = new_figure(9, 3.8)
    speeds, gains = figure.subplots(1, 2)
    for index, number in enumerate(dict.fromkeys(row.num_stages for row in rows)):
        of_kind = {
            kind: {row.latency_ms: row.tokens_per_s for row in rows if (row.num_stages, row.kind) == (number, kind)}
            for kind in KINDS
        }
        name = f"{number} stage{'s' if number > 1 else ''}"
        for (kind, points), style in zip(of_kind.items(), ("--", ":", "-"), strict=True):
            if not points:
                continue
            line = {"color": f"C{index}", "linestyle": style, "marker": "o", "markersize": 4}
            speeds.plot(list(points), list(points.values()), label=f"{name}, {kind}", **line)
        drafted = of_kind["one pass"] | of_kind["two passes"]
        ratios = {latency: drafted[latency] / speed for latency, speed in of_kind["plain"].items()}
        gains.plot(list(ratios), list(ratios.values()), color=f"C{index}", marker="o", markersize=4, label=name)
    speeds.set_yscale("log")
    speeds.set_ylabel("tokens a second")
    gains.set_ylabel("drafted over plain")
    gains.set_ylim(bottom=0)
    for axes in (speeds, gains):
        axes.set_xlabel("link one way, ms")
        axes.legend(fontsize="small")
    save_plot(figure, path)
