"""Measures how long a pass of 1 to 16 tokens takes, and plain decoding, behind short texts and long ones."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.peers.measuring import Record, Round, random_prompt, say
from benchmarks.peers.runtimes import Contender

WIDTHS = tuple(range(1, 17))
NUM_TOKENS = 33  # of a plain answer


class Effort(NamedTuple):
    """Of which shape, behind how many tokens, and how often: plain answers, and passes of every width.

    left_out: a precision that memory has no room for beside all others.
    """

    shape: str
    pasts: Sequence[int]
    num_answers: int
    num_passes: int
    left_out: str = ""
    widths: Sequence[int] = WIDTHS


def measure_passes(contenders: Sequence[Contender], effort: Effort) -> dict[str, Record]:
    """Contender -> its versions, its memory, and "pasts": past -> "token_s", "peak_bytes" and "pass_s".

    All workers live at once. Answers come first and texts grow, so that the memory of each is its own; then passes
    behind the longest text and, as it is cut, behind the shorter ones: it is read once.
    """
    prompt = random_prompt(max(effort.pasts), 300, effort.shape)
    with Round(contenders, effort.shape) as workers:
        pasts: dict[str, dict[str, Record]] = {name: {} for name in workers.records}
        for past in sorted(effort.pasts):
            for turn in range(effort.num_answers):
                workers.generate(prompt[:past], NUM_TOKENS, turn)
            for name, record in workers.take().items():
                peak_bytes = workers.records[name].get("peak_bytes", 0)
                pasts[name][str(past)] = {"token_s": record["token_s"], "peak_bytes": peak_bytes}
            say(f"  answers behind {past}")
        for past in sorted(effort.pasts, reverse=True):
            for turn in range(effort.num_passes):
                workers.passes(prompt[:past], 1, turn, effort.widths)
            for name, record in workers.take().items():
                pasts[name][str(past)]["pass_s"] = record["pass_s"]
            say(f"  passes behind {past}")
        records = workers.records
    kept = ("versions", "error", "peak_bytes")
    return {name: {k: r[k] for k in kept if k in r} | {"pasts": pasts[name]} for name, r in records.items()}
