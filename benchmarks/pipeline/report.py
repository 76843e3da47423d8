"""The tables of `benchmarks.pipeline`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pipeline.pass_parts import PassParts
from reader_edge_runtime.atomic_file import write_file


@dataclass(frozen=True, slots=True)
class Row:
    """tokens_per_s: of all requests. length: tokens a step of each. nodes: of its trees. step_ms: of its passes."""

    num_stages: int
    latency_ms: float
    kind: str
    num_requests: int
    tokens_per_s: float
    length: float
    nodes: float
    step_ms: float
    is_same: bool


def write_report(rows: Sequence[Row], parts: Sequence[PassParts], several: Sequence[Row], path: Path) -> None:
    lines = [*_latencies(rows, parts), "", *_several(several), "", *_parts(parts)]
    write_file(path, ("\n".join(lines) + "\n").encode())


def _latencies(rows: Sequence[Row], parts: Sequence[PassParts]) -> Iterator[str]:
    """Step times beside stages and links; speed-ups beside those of DSD's formula.

    T = k·t0 + (N-1)·t1 for k tokens instead of k·(t0 + (N-1)·t1), t0 being a plain pass of the stages and t1 a link.
    """
    yield "| stages | link ms | | tokens/s | a step | nodes | step ms | stages + links | drafted/plain | DSD | same |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    stages_ms = {each.num_stages: each.stages_ms for each in parts}
    plain = {(row.num_stages, row.latency_ms): row for row in rows if row.kind == "plain"}
    for row in rows:
        before = plain[row.num_stages, row.latency_ms]
        t0, t1, k = stages_ms.get(row.num_stages, before.step_ms), row.latency_ms, row.length
        ways = row.num_stages * t1 if row.num_stages > 1 else 0.0
        hops = (row.num_stages - 1) * t1
        told = [f"{row.num_stages} | {row.latency_ms:g} | {row.kind} | {row.tokens_per_s:.1f} | {k:.2f}"]
        told.append(f"{row.nodes:.1f} | {row.step_ms:.1f} | {f'{t0 + ways:.1f}' if row.kind == 'plain' else ''}")
        gain, formula = row.tokens_per_s / before.tokens_per_s, k * (t0 + hops) / (k * t0 + hops)
        told.append(f"{gain:.2f} | {formula:.2f}" if row.kind == "drafted" else " | ")
        yield f"| {' | '.join(told)} | {'yes' if row.is_same else 'NO'} |"


def _several(rows: Sequence[Row]) -> Iterator[str]:
    yield "| stages | link ms | requests together | tokens/s, prompts included | of one request's | same |"
    yield "|---|---|---|---|---|---|"
    one = {row.num_stages: row.tokens_per_s for row in rows if row.num_requests == 1}
    for row in rows:
        gain = f"{row.tokens_per_s / one[row.num_stages]:.2f}" if row.num_stages in one else ""
        told = f"{row.tokens_per_s:.1f} | {gain} | {'yes' if row.is_same else 'NO'}"
        yield f"| {row.num_stages} | {row.latency_ms:g} | {row.num_requests} | {told} |"


def _parts(parts: Sequence[PassParts]) -> Iterator[str]:
    yield "| stages | one box ms | sum of stages | ring on loopback | a stage more | frame bytes | bytes a node |"
    yield "|---|---|---|---|---|---|---|"
    for each in parts:
        overhead = (each.ring_ms - each.one_box_ms) / (each.num_stages - 1)
        told = f"{each.one_box_ms:.2f} | {each.stages_ms:.2f} | {each.ring_ms:.2f} | {overhead:.2f}"
        yield f"| {each.num_stages} | {told} | {each.frame_bytes} | {each.stream_bytes} |"
