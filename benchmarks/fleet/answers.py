"""Recorded answers as steps that may begin at any token: how many tokens would each size of tree have brought there?

    python -m benchmarks.fleet.answers RECORDING.jsonl... --tokenizer TOKENIZER

writes `answers.json`, which simulations draw from. Two drafters follow each answer. The server's knows the prompt and
the answer so far; the device's also what the device was told before, which the server never sees.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from reader_edge.bench.recording import RecordedRequest, RecordedTurn, read_recording
from reader_edge.bench.replay.replayed_request import MAX_DEPTH, ReplayedRequest
from reader_edge.model_source import load_tokenizer
from reader_edge_runtime import DraftConfig
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore

FILE = Path(__file__).with_name("answers.json")
WIDTHS = (1, 2, 4, 8, 16, 32)  # nodes of a tree, the pending token included
_MAX_TOKENS = 96
_PER_RECORDING = 16
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Steps = Mapping[int, Sequence[int]]  # width -> tokens that a step emits, by the token of the answer that it begins at

Emitted = Mapping[
    bool, Mapping[int, float]
]  # whether the device drafts -> width -> tokens that a step says in the mean


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer. server, device: what steps bring whose trees are drafted by either's knowledge."""

    task: str
    server: Steps
    device: Steps

    def __len__(self) -> int:
        """Tokens of the answer."""
        return len(self.server[1])


def read_answers(path: Path = FILE) -> list[Answer]:
    """The answers that `python -m benchmarks.fleet.answers` wrote."""
    return [_answer(fields) for fields in json.loads(path.read_text())["answers"]]


def _answer(fields: Mapping[str, Any]) -> Answer:
    steps = [
        {int(width): [_DIGITS.index(digit) for digit in digits] for width, digits in fields[who].items()}
        for who in ("server", "device")
    ]
    return Answer(fields["task"], *steps)


def emitted_table(answers: Sequence[Answer]) -> Emitted:
    """What steps bring in the mean, over answers that are decoded with trees of one width."""
    return {
        is_device: {width: _emitted_mean(answers, width, is_device) for width in WIDTHS} for is_device in (True, False)
    }


def _emitted_mean(answers: Sequence[Answer], width: int, is_device: bool) -> float:
    num_steps = 0
    for answer in answers:
        steps, position = (answer.device if is_device else answer.server)[width], 0
        while position < len(answer):
            position += steps[position]
            num_steps += 1
    return sum(map(len, answers)) / num_steps


def tabled(name: str, requests: Sequence[RecordedRequest], count: int = _PER_RECORDING) -> Iterator[dict[str, Any]]:
    """So many of a recording's answers, evenly spread, as lines of the file. Both drafters learn all the others too."""
    cores = {
        who: DraftingCore(DraftConfig(max_nodes=WIDTHS[-1], max_depth=MAX_DEPTH, is_history_used=who == "device"))
        for who in ("server", "device")
    }
    chosen = {(2 * i + 1) * len(requests) // (2 * count) for i in range(count)}
    for number, request in enumerate(requests):
        turn = request.turns[0]
        lines = {who: _table(ReplayedRequest(core, turn), turn, number in chosen) for who, core in cores.items()}
        if number in chosen:
            yield {"task": name, **lines}


def _table(request: ReplayedRequest, turn: RecordedTurn, is_chosen: bool) -> dict[str, str]:
    """Width -> what steps from each of the first tokens bring, a digit a token. The whole answer is learned."""
    output = turn.output[:_MAX_TOKENS]
    digits = dict.fromkeys(map(str, WIDTHS), "")
    for position, token_id in enumerate(output if is_chosen else ()):
        tree = request.draft(WIDTHS[-1])
        for width in WIDTHS:
            digits[str(width)] += _DIGITS[_emitted(tree.pruned(width), output[position:])]
        request.observe([token_id])
    request.observe(turn.output[len(output) if is_chosen else 0 :])
    request.finish()
    return digits


def _emitted(tree: DraftTree, output: Sequence[int]) -> int:
    """Tokens that a step emits: accepted ones, and the target's own. output: what is said from here on."""
    node, count = 0, 1
    while count < len(output) and (node := tree.child(node, output[count - 1])) >= 0:
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+", help="recorded answers, NAME.jsonl")
    parser.add_argument("--tokenizer", required=True, help="the recordings' tokenizer.json")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    answers = [line for path in options.recordings for line in tabled(path.stem, read_recording(path, tokenizer))]
    lines = ",\n".join(json.dumps(line) for line in answers)
    text = f'{{"recordings": {json.dumps([path.name for path in options.recordings])}, "date": "{date.today()}",'
    write_file(FILE, f'{text} "answers": [\n{lines}\n]}}\n'.encode())


if __name__ == "__main__":
    main()
