"""What reader-edge is meant to reach beside its peers, judged from results.json."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OURS = "reader-edge int8"
QUANTISED, PROMPT = "0.5b-quantised", "0.5b-prompt"

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and what was measured."""

    text: str
    is_met: bool
    evidence: str


def judge_goals(results: Mapping[str, Any]) -> list[Goal]:
    """Goals of those parts that were measured, all at the 0.5B shape."""
    goals: list[Goal] = []
    quantised: Figures = results.get(QUANTISED, {}).get("figures", {})
    if quantised.get(OURS, {}).get("token_s"):
        goals.append(_plain(quantised))
        goals += _passes(quantised)
        goals.append(_first_token(quantised, 512))
    prompt: Figures = results.get(PROMPT, {}).get("figures", {})
    if prompt.get(OURS, {}).get("first_s"):
        goals.append(_first_token(prompt, 4096))
    if "modelled" in results:
        goals += _modelled(results["modelled"]["figures"])
    return goals


def _plain(figures: Figures) -> Goal:
    ours = statistics.median(figures[OURS]["token_s"])
    peer, theirs = _fastest_peer(figures, "token_s")
    evidence = f"{1e3 * ours:.1f} ms a token; {peer} {1e3 * theirs:.1f} ms: {ours / theirs:.2f} of it"
    return Goal("int8 exact decodes plainly at least as fast as every peer's 8-bit and 4-bit", ours <= theirs, evidence)


def _passes(figures: Figures) -> Iterator[Goal]:
    pass_s = figures[OURS]["pass_s"]
    for width, limit in (("16", 1.5), ("8", 1.3)):
        ratio = statistics.median(pass_s[width]) / statistics.median(pass_s["1"])
        yield Goal(f"T({width})/T(1) at most {limit}", ratio <= limit, f"{ratio:.2f}")


def _first_token(figures: Figures, length: int) -> Goal:
    ours = statistics.median(figures[OURS]["first_s"])
    peer, theirs = _fastest_peer(figures, "first_s")
    evidence = f"{ours:.2f} s; {peer} {theirs:.2f} s: {ours / theirs:.2f} times"
    text = f"first token after {length} at most 1.2 times the fastest 8-bit or 4-bit peer's"
    return Goal(text, ours <= 1.2 * theirs, evidence)


def _modelled(figures: Figures) -> Iterator[Goal]:
    """Whether drafting pays more than every peer's on every recording, and whether its tokens come fastest."""
    for key, best, text in (
        ("speed_up", max, "modelled gain of drafting over plain decoding above every peer's, all recordings"),
        ("token_s", min, "modelled drafted decoding faster than every peer's, all recordings"),
    ):
        if any(OURS not in recording for recording in figures.values()):
            return
        losses = []
        for name, recording in figures.items():
            winner = best(recording, key=lambda contender: recording[contender][key])
            if not winner.startswith("reader-edge"):
                losses.append(f"{name} ({winner})")
        evidence = f"{len(figures) - len(losses)} of {len(figures)}"
        yield Goal(text, not losses, evidence + (f"; not {', '.join(losses)}" if losses else ""))


def _fastest_peer(figures: Figures, key: str) -> tuple[str, float]:
    peers = {n: statistics.median(r[key]) for n, r in figures.items() if r[key] and not n.startswith("reader-edge")}
    if not peers:
        return "no peer ran", float("inf")
    fastest = min(peers, key=lambda name: peers[name])
    return fastest, peers[fastest]
