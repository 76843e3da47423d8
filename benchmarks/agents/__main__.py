"""Recorded sessions of coding agents: over measured passes, and on a real model by the clock.

    python -m benchmarks.agents [--table NAME=TABLE.json ...] [--model smollm2:135m] [--rounds 3] [--turns]
                                [--clients claude,codex,opencode]

Prints the tables of docs/explanation/measured/speed/agents.md. Pass times are those of the 3B shape in
benchmarks/agents/passes where no --table is given; `benchmarks.agents.pass_table` measures others. Sessions come from
`benchmarks.agents.record`, cut short for the real model; --model "" leaves it out. --turns shows each turn.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.agents import clock
from benchmarks.agents.pass_table import read_table
from benchmarks.agents.replay import Replayed, replay, workspace_index
from benchmarks.agents.sessions import FOLDER, read_session
from benchmarks.peers.tables import table
from reader_edge.models.model_source import find_package, load_tokenizer
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.stats import GenerationStats

_USUAL = Path(__file__).with_name("passes") / "qwen2.5-3b.json"
_SPEEDS = ("plain, tokens/s", "drafted", "with workspace", "drafted / plain", "workspace / plain")
_HEAD = ("answers", "context", "tokens", *_SPEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="*", default=[f"3B shape={_USUAL}"], metavar="NAME=TABLE.json")
    parser.add_argument("--tokenizer", default="smollm2:135m")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="claude,codex,opencode")
    parser.add_argument("--turns", action="store_true")
    given = parser.parse_args()
    names = given.clients.split(",")
    tokenizer = load_tokenizer(given.tokenizer)
    index = workspace_index(tokenizer)
    for each in given.table:
        shape, _, path = each.partition("=")
        cost, rows = read_table(Path(path)), list[list[str]]()
        for name in names:
            turns = read_session(FOLDER / f"{name}.jsonl", tokenizer)
            drafted, beside = (list(replay(turns, cost, kept)) for kept in (None, index))
            rows += replay_rows(name, drafted, beside, given.turns)
        print(f"\n{shape}\n\n" + "\n".join(table([*_HEAD, "perfect drafter / plain"], rows)), flush=True)
    if given.model:
        for name in names:
            _by_the_clock(name, find_package(given.model), given.rounds)


def replay_rows(
    name: str, drafted: Sequence[Replayed], beside: Sequence[Replayed], has_turns: bool
) -> Iterator[list[str]]:
    """A row for each kind of turn, or each turn, and one for all."""
    pairs = list(zip(drafted, beside, strict=True))
    kinds = list(dict.fromkeys(each.kind for each in drafted))
    groups = [[pair] for pair in pairs] if has_turns else [[p for p in pairs if p[0].kind == kind] for kind in kinds]
    for group in [*groups, pairs]:
        ours, theirs = (Replayed.total([pair[which] for pair in group]) for which in (0, 1))
        kind = "all" if group is pairs else ours.kind
        speeds = (ours.plain_s, ours.drafted_s, theirs.drafted_s)
        yield [
            *(f"{name}, {kind}", f"{ours.context:,}", f"{ours.num_tokens:,}"),
            *(f"{ours.num_tokens / seconds:.1f}" for seconds in speeds),
            *(f"{ours.plain_s / seconds:.2f}" for seconds in (*speeds[1:], ours.perfect_s)),
        ]


def _by_the_clock(name: str, package: Path, rounds: int) -> None:
    max_context = ModelPackage.open(package).manifest.max_context
    turns = read_session(FOLDER / f"{name}.jsonl", load_tokenizer(str(package)), is_short=True)
    turns = [turn for turn in turns if len(turn.prompt) + len(turn.answer) <= max_context]
    timed = list(clock.sessions(package, turns, rounds))
    kinds = list(dict.fromkeys(turn.kind for turn in turns))
    rows = []
    for kind in [*kinds, "all"]:
        numbers = [i for i, turn in enumerate(turns) if kind in (turn.kind, "all")]
        seconds = [sum(_token_s(timed, arm, i) * len(turns[i].answer) for i in numbers) for arm in clock.ARMS]
        num_tokens = sum(len(turns[i].answer) for i in numbers)
        longest = max(len(turns[i].prompt) for i in numbers)
        speeds = [f"{num_tokens / each:.1f}" for each in seconds]
        ratios = [f"{seconds[0] / each:.2f}" for each in seconds[1:]]
        rows.append([f"{name}, {kind}", f"{longest:,}", f"{num_tokens:,}", *speeds, *ratios])
    print(f"\n{package.parent.name}, medians of {rounds} sessions", end="\n\n")
    print("\n".join(table(_HEAD, rows)), flush=True)
    after = list(clock.restarts(package, turns, rounds))
    rows = []
    for number in sorted({each.turn for each in after}):
        kept = median(each.first_s for each in timed if each.turn == number)
        cold, disk = (
            median(each.first_s for each in after if (each.arm, each.turn) == (arm, number))
            for arm in ("restarted", "with prefix cache")
        )
        stats = next(each.stats for each in after if (each.arm, each.turn) == ("with prefix cache", number))
        num_read = f"{stats.num_prompt_tokens - stats.num_reused_tokens:,}"
        texts = [f"{seconds:.3f}" for seconds in (kept, cold, disk)]
        context = f"{stats.num_prompt_tokens:,}"
        rows.append([f"{name}, turn {number + 1}", context, *texts, num_read, f"{disk / cold:.2f}"])
    head = ["first token, s", "context", "kept in memory", "restarted", "with prefix cache", "still to read", "share"]
    print("\n" + "\n".join(table(head, rows)), flush=True)


def _token_s(timed: Sequence[clock.Timed], arm: str, turn: int) -> float:
    """Seconds that a token took, median of the rounds."""
    of_turn: list[GenerationStats] = [each.stats for each in timed if (each.arm, each.turn) == (arm, turn)]
    return median(1 / stats.tokens_per_s for stats in of_turn)


if __name__ == "__main__":
    main()
