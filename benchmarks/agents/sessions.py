"""Recorded sessions as token ids: what a model reads at each turn, and what it answers."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.scripted_target import BEGIN, END

FOLDER = Path(__file__).with_name("sessions")
# What each turn of `session_script` is.
KINDS = ("shell", "read", "read", "read", "edit", "edit", "write", "shell", "edit", "write", "shell", "end")
_SHORT = 1_200  # characters of a short session's instructions
_LEFT_OUT = 3  # the turn that reads a file which no later turn changes
_INSTRUCTIONS = re.compile(rf"^({re.escape(BEGIN)}system\n.{{,{_SHORT}}}).*?(?={re.escape(END)})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Turn:
    """prompt: the whole text before the answer."""

    kind: str
    prompt: list[int]
    answer: list[int]


def read_session(path: Path, tokenizer: Tokenizer, is_short: bool = False) -> list[Turn]:
    """The turns of a recorded session. is_short: with most of the instructions and one file left out."""
    turns = json.loads(path.read_text("utf-8"))["turns"]
    if len(turns) != len(KINDS):
        raise ValueError(f"'{path}' has {len(turns)} turns, not {len(KINDS)}: record it again.")
    kinds, text, found = list(KINDS), "", list[Turn]()
    if is_short:
        turns[0]["input"] = _INSTRUCTIONS.sub(r"\1", turns[0]["input"])
        turns[_LEFT_OUT + 1]["input"] = turns[_LEFT_OUT]["input"]
        del turns[_LEFT_OUT], kinds[_LEFT_OUT]
    for kind, turn in zip(kinds, turns, strict=True):
        text += turn["input"]
        found.append(Turn(kind, tokenizer.encode(text, False), tokenizer.encode(turn["output"], False)))
        text += turn.get("resent", turn["output"])
    return found
