"""Recorded sessions of coding agents: over measured passes, and on a real model by the clock.

    python -m benchmarks.agents [--table NAME=TABLE.json ...] [--model smollm2:135m] [--rounds 3] [--turns]
                                [--clients claude,codex,opencode] [--llama-server PROGRAM --gguf FILE]

Prints the tables of docs/explanation/measured/speed/agents.md. Pass times are those of the 3B and 7B shapes in
benchmarks/agents/passes where no --table is given; `benchmarks.agents.pass_table` measures others. Sessions come from
`benchmarks.agents.record`, cut short for the real model; --model "" leaves it out. --turns shows each turn.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.agents import clock, llama_cpp
from benchmarks.agents.clock import TurnTime
from benchmarks.agents.pass_table import MEASURED, read_table
from benchmarks.agents.replay import Replayed, replay, workspace_index
from benchmarks.agents.sessions import FOLDER, Turn, read_session
from benchmarks.peers.tables import table
from reader_edge.models.model_source import find_package, load_tokenizer
from reader_edge_runtime.package.model_package import ModelPackage

_SPEEDS = ("plain, tokens/s", "drafted", "with workspace", "drafted / plain", "workspace / plain")
_HEAD = ("answers", "context", "tokens", *_SPEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="*", default=MEASURED, metavar="NAME=TABLE.json")
    parser.add_argument("--tokenizer", default="smollm2:135m")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="claude,codex,opencode")
    parser.add_argument("--llama-server", type=Path, help="the program, to measure it beside")
    parser.add_argument("--gguf", type=Path, help="the same model for it")
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
            _by_the_clock(name, given)


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


def _by_the_clock(name: str, given: argparse.Namespace) -> None:
    package, rounds = find_package(given.model), given.rounds
    context = ModelPackage.open(package).manifest.max_context
    turns = read_session(FOLDER / f"{name}.jsonl", load_tokenizer(str(package)), is_short=True)
    turns = [turn for turn in turns if len(turn.prompt) + len(turn.answer) <= context]
    timed = [*clock.sessions(package, turns, rounds), *clock.restarts(package, turns, rounds)]
    token_s = [[clock.median_turn(timed, arm, i).token_s for i in range(len(turns))] for arm in clock.ARMS]
    print(f"\n{package.parent.name}, medians of {rounds} sessions\n\n{_speeds(name, turns, _HEAD, token_s)}\n")
    print(_first_tokens(name, turns, timed, "with prefix cache"), flush=True)
    if given.llama_server:
        sent = (given.llama_server, str(given.gguf), context, turns, rounds)
        timed = [*llama_cpp.sessions(*sent), *llama_cpp.restarts(*sent)]
        token_s = llama_cpp.token_seconds(timed, len(turns))
        head = [*_HEAD[:4], *llama_cpp.ARMS[1:], *(f"{arm} / plain" for arm in llama_cpp.ARMS[1:])]
        print(f"\nllama-server, medians of {rounds} sessions\n\n{_speeds(name, turns, head, token_s)}\n")
        print(_first_tokens(name, turns, timed, llama_cpp.RESTORED), flush=True)


def _speeds(name: str, turns: Sequence[Turn], head: Sequence[str], token_s: Sequence[Sequence[float]]) -> str:
    """A row for each kind of turn. token_s: seconds a token, of each arm and turn; the first arm is plain."""
    rows = []
    for kind in [*dict.fromkeys(turn.kind for turn in turns), "all"]:
        numbers = [i for i, turn in enumerate(turns) if kind in (turn.kind, "all")]
        seconds = [sum(arm[i] * len(turns[i].answer) for i in numbers) for arm in token_s]
        num_tokens = sum(len(turns[i].answer) for i in numbers)
        longest = max(len(turns[i].prompt) for i in numbers)
        speeds = [f"{num_tokens / each:.1f}" for each in seconds]
        ratios = [f"{seconds[0] / each:.2f}" for each in seconds[1:]]
        rows.append([f"{name}, {kind}", f"{longest:,}", f"{num_tokens:,}", *speeds, *ratios])
    return "\n".join(table(head, rows))


def _first_tokens(name: str, turns: Sequence[Turn], timed: Sequence[TurnTime], restored: str) -> str:
    """A row for each turn behind a restart; the last column is a restored prefix over none."""
    arms, rows = ("plain", "restarted", restored), []
    for number in clock.restarted_turns(turns):
        found = [clock.median_turn(timed, arm, number) for arm in arms]
        texts = [f"{len(turns[number].prompt):,}", *(f"{each.first_s:.3f}" for each in found), f"{found[2].num_read:,}"]
        rows.append([f"{name}, turn {number + 1}", *texts, f"{found[2].first_s / found[1].first_s:.2f}"])
    head = ["first token, s", "context", "kept in memory", "restarted", restored, "still to read", "share"]
    return "\n".join(table(head, rows))


if __name__ == "__main__":
    main()
