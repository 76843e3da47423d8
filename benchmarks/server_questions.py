"""Requests of all kinds for a server under load, nonsense included, made by chance from a seed."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "kinds": {"type": "array", "items": {"enum": ["file", "folder", "link"]}, "maxItems": 3},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look a word up.", "parameters": _SCHEMA}}


@dataclass(frozen=True, slots=True)
class Question:
    """What is posted where. Its answer is the same whenever it is asked."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Nonsense:
    """What no server should answer with 200, and statuses that are in order."""

    path: str
    content: bytes
    statuses: tuple[int, ...]


def questions(texts: Sequence[str], count: int, max_tokens: int, seed: int) -> list[Question]:
    """Of prompts of few to some thousand characters; greedy and sampled, with and without grammars and tools."""
    chance = random.Random(seed)
    return [_question(chance, texts, max_tokens) for _ in range(count)]


def _question(chance: random.Random, texts: Sequence[str], max_tokens: int) -> Question:
    text = chance.choice(texts)
    prompt = text[: int(20 * 100 ** chance.random())]
    body: dict[str, Any] = {
        "model": "model",
        "temperature": chance.choice((0, 0, 0.7, 1.2)),
        "seed": chance.randrange(1 << 40),
        "max_tokens": chance.randint(1, max_tokens),
    }
    if chance.random() < 0.2:
        body["n"] = 2
    if chance.random() < 0.2:
        body["stop"] = chance.sample([".", "\n\n", "tar", "the "], 2)
    if chance.random() < 0.1:
        body["top_p"] = 0.9
    if chance.random() < 0.1:
        body["logit_bias"] = {str(chance.randrange(1000)): 5}
    if chance.random() < 0.5:
        return Question(COMPLETIONS, body | {"prompt": prompt} | ({"logprobs": 2} if chance.random() < 0.3 else {}))
    body["messages"] = [{"role": "user", "content": prompt}]
    if chance.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": 2}
    return Question(CHAT, body | _form(chance))


def _form(chance: random.Random) -> dict[str, Any]:
    """What an answer must look like; of most, nothing."""
    kind = chance.choice(("free", "free", "schema", "object", "tool", "choice"))
    if kind == "schema":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "entry", "schema": _SCHEMA}}}
    if kind == "object":
        return {"response_format": {"type": "json_object"}}
    if kind == "tool":
        return {"tools": [_TOOL], "tool_choice": chance.choice(("auto", "required"))}
    if kind == "choice":
        return {"structured_outputs": {"choice": ["yes", "no", "it depends"]}}
    return {}


def nonsense(chance: random.Random, max_body_bytes: int) -> Nonsense:
    """Something malformed, too large, or of wrong types."""
    bad: Sequence[tuple[bytes, tuple[int, ...]]] = (
        (b"", (400,)),
        (b'{"model": "model", "prompt": ', (400,)),
        (b"[" * 100_000, (400,)),
        (b"\xff\xfe\x00", (400,)),
        (chance.randbytes(chance.randrange(1, 5000)), (400,)),
        (_json(prompt="a" * (max_body_bytes + 1)), (413,)),
        (_json(prompt={"a": 1}, messages=3), (400,)),
        (_json(prompt=[1 << 70], messages=[None]), (400,)),
        (_json(prompt="a", messages=[{"role": "root", "content": "a"}], max_tokens=-1), (400,)),
        (_json(prompt="a", messages=[], temperature="hot"), (400,)),
        (_json(prompt="a b " * 100_000, messages=[{"role": "user", "content": "a b " * 100_000}]), (400,)),
        (json.dumps({"model": "another", "prompt": "a", "messages": []}).encode(), (404,)),
    )
    content, statuses = chance.choice(bad)
    return Nonsense(chance.choice((CHAT, COMPLETIONS)), content, statuses)


def _json(**fields: object) -> bytes:
    return json.dumps({"model": "model"} | fields).encode()
