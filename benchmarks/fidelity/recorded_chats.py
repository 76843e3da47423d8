"""Recorded answers as conversations, rendered with the measured model's own chat template."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

_MESSAGE = re.compile(r"<\|(system|user|assistant|tool)\|>\n(.*?)<\|end\|>\n", re.DOTALL)

Message = dict[str, str]


def recorded_messages(text: str) -> list[Message]:
    """The messages of a recorded input, in its markup; what a tool returned stands as the user's."""
    roles = {"tool": "user"}
    return [{"role": roles.get(role, role), "content": content} for role, content in _MESSAGE.findall(text)]


def read_conversations(path: Path) -> list[list[Message]]:
    """The requests of a recording, one JSON object a line with `turns` of `input` and `output`; answers come last."""
    conversations = []
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        messages: list[Message] = []
        for turn in json.loads(line)["turns"]:
            messages += recorded_messages(turn["input"])
            messages.append({"role": "assistant", "content": turn["output"]})
        conversations.append([message | {"content": message["content"].strip()} for message in messages])
    return conversations


def mixed(files: Sequence[Path]) -> Iterator[list[Message]]:
    """Conversations of all files in turn, those of a file in an order that is always the same."""
    shuffled = []
    for path in files:
        conversations = read_conversations(path)
        random.Random(path.name).shuffle(conversations)  # noqa: S311  (no secret)
        shuffled.append(conversations)
    for row in zip_longest(*shuffled):
        yield from (conversation for conversation in row if conversation is not None)
