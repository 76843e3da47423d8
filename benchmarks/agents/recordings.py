"""Recorded answers behind long texts, replayed over measured passes, and on a real model by the clock.

    python -m benchmarks.agents.recordings FILE.jsonl ... [--table NAME=TABLE.json ...] [--contexts 8000,24000]
                                           [--model smollm2:135m] [--model-contexts 6000,8192] [--turns 12]

FILES are what `reader-edge bench replay` reads. Counted are answers whose text has as many tokens as --contexts says,
first before the answer, then with it. Requests of several turns are texts of their own; those of one turn follow each
other in one text, as questions about one document after another do. --turns: of each file, on the real model.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from benchmarks.agents import clock
from benchmarks.agents.pass_table import MEASURED, read_table
from benchmarks.agents.replay import Replayed, replay
from benchmarks.agents.sessions import Turn
from benchmarks.peers.tables import table
from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.models.model_source import find_package, load_tokenizer

_HEAD = ("answers", "longest text", "tokens", "plain, tokens/s", "drafted", "drafted / plain")


def long_turns(requests: Sequence[RecordedRequest], least: int, most: int) -> Iterator[Turn]:
    """Turns with `least` tokens or more before the answer, and `most` or fewer with it."""
    text: list[int] = []
    for request in requests:
        if len(request.turns) > 1:
            text = []
        for turn in request.turns:
            if len(text) + len(turn.prompt) + len(turn.output) > most:
                text = []
                if len(request.turns) > 1:
                    break  # its other turns are about what is gone now
            text += turn.prompt
            if len(text) >= least:
                yield Turn(request.task, list(text), turn.output)
            text += turn.output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--table", nargs="*", default=MEASURED, metavar="NAME=TABLE.json")
    parser.add_argument("--tokenizer", default="smollm2:135m")
    parser.add_argument("--contexts", type=_range, default=(8_000, 24_000))
    parser.add_argument("--model", default="smollm2:135m", help='"" leaves it out')
    parser.add_argument("--model-contexts", type=_range, default=(6_000, 8_192))
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    tokenizer = load_tokenizer(given.tokenizer)
    recordings = {path.stem: read_recording(path, tokenizer) for path in given.files}
    for each in given.table:
        shape, _, path = each.partition("=")
        cost, rows = read_table(Path(path)), list[list[str]]()
        for name, requests in recordings.items():
            if answers := list(replay(list(long_turns(requests, *given.contexts)), cost, None)):
                every = Replayed.total(answers)
                seconds = every.plain_s, every.drafted_s
                rows.append(_row(name, every.context, every.num_tokens, seconds, every.plain_s / every.perfect_s))
                rows[-1].append(f"{min(each.plain_s / each.drafted_s for each in answers):.2f}")
        print(
            f"\n{shape}\n\n" + "\n".join(table([*_HEAD, "perfect drafter / plain", "slowest answer"], rows)), flush=True
        )
    if given.model:
        _by_the_clock(recordings, given)


def _by_the_clock(recordings: dict[str, list[RecordedRequest]], given: argparse.Namespace) -> None:
    package, rows = find_package(given.model), list[list[str]]()
    for name, requests in recordings.items():
        if turns := list(islice(long_turns(requests, *given.model_contexts), given.turns)):
            timed = list(clock.sessions(package, turns, given.rounds, clock.ARMS[:2]))
            seconds = [
                sum(clock.median_turn(timed, arm, i).token_s * len(turn.answer) for i, turn in enumerate(turns))
                for arm in clock.ARMS[:2]
            ]
            rows.append(_row(name, max(len(turn.prompt) for turn in turns), sum(len(t.answer) for t in turns), seconds))
    print(f"\n{given.model}, by the clock\n\n" + "\n".join(table(_HEAD, rows)), flush=True)


def _row(name: str, longest: int, num_tokens: int, seconds: Sequence[float], *further: float) -> list[str]:
    """seconds: plain, drafted."""
    speeds = [f"{num_tokens / each:.1f}" for each in seconds]
    ratios = [f"{each:.2f}" for each in (seconds[0] / seconds[1], *further)]
    return [name, f"{longest:,}", f"{num_tokens:,}", *speeds, *ratios]


def _range(text: str) -> tuple[int, int]:
    least, most = (int(number) for number in text.split(","))
    return least, most


if __name__ == "__main__":
    main()
