"""Requests of all kinds for a server under load, nonsense included, made by chance from a seed."""

import functools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
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
_FUNCTIONS: list[dict[str, Any]] = [
    {"name": "look_up", "description": "Look a word up.", "parameters": _SCHEMA},
    {"name": "list_all", "description": "List everything.", "parameters": {"type": "object", "properties": {}}},
]
_STRICT_SCHEMA = _SCHEMA | {"required": ["name", "size", "kinds"]}
_LARK = """start: "It is " SIZE " and " SIZE "."
SIZE: /[0-9]{1,3}/
"""
_REGEX = r"(yes|no), [a-z]{2,12}( [a-z]{2,12}){0,3}\."


@dataclass(frozen=True, slots=True)
class Question:
    """What is posted where. Its answer is the same whenever it is posted."""

    path: str
    body: Mapping[str, Any]

    @property
    def streamed(self) -> dict[str, Any]:
        """The body that asks for pieces, with counts of tokens at the end."""
        counts = {} if self.path == RESPONSES else {"stream_options": {"include_usage": True}}
        return {**self.body, "stream": True, **counts}


@dataclass(frozen=True, slots=True)
class Nonsense:
    """What no server should answer with 200, and statuses that are in order."""

    path: str
    content: bytes
    statuses: tuple[int, ...]


def questions(texts: Sequence[str], count: int, max_tokens: int, seed: int) -> list[Question]:
    """Of prompts of few to some thousand characters; greedy and sampled, with grammars of all kinds, tools, predictions
    and priorities, and without."""
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
    if chance.random() < 0.15:
        return Question(RESPONSES, _response(chance, body, prompt))
    if chance.random() < 0.2:
        body["n"] = 2
    if chance.random() < 0.2:
        body["priority"] = chance.randint(-2, 2)
    if chance.random() < 0.15:
        body["prediction"] = {"type": "content", "content": text[len(prompt) : len(prompt) + 400]}
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
    """What a chat's answer must look like; of many, nothing."""
    tools = [{"type": "function", "function": each} for each in _FUNCTIONS]
    strict = {"type": "function", "function": _FUNCTIONS[0] | {"parameters": _STRICT_SCHEMA, "strict": True}}
    named = {"type": "function", "function": {"name": "look_up"}}
    schema = {"type": "json_schema", "json_schema": {"name": "entry", "schema": _SCHEMA}}
    return chance.choice(
        (
            {},
            {},
            {},
            {"response_format": schema},
            {"response_format": {"type": "json_object"}},
            {"tools": tools, "tool_choice": chance.choice(("auto", "required"))},
            {"tools": tools, "tool_choice": named},
            {"tools": [strict, tools[1]], "tool_choice": "required"},
            {"structured_outputs": {"choice": ["yes", "no", "it depends"]}},
            {"structured_outputs": {"regex": _REGEX}},
            {"structured_outputs": {"grammar": _LARK}},
        )
    )


def _response(chance: random.Random, body: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """The same for `/v1/responses`."""
    tools = [{"type": "function", **each} for each in _FUNCTIONS]
    form: dict[str, Any] = chance.choice(
        (
            {},
            {"instructions": "Be brief."},
            {"text": {"format": {"type": "json_schema", "name": "entry", "schema": _SCHEMA}}},
            {"tools": tools, "tool_choice": "required"},
        )
    )
    sent = {name: body[name] for name in ("model", "temperature", "seed")}
    return {**sent, "input": prompt, "max_output_tokens": max(16, body["max_tokens"]), **form}


def nonsense(chance: random.Random, max_body_bytes: int) -> Nonsense:
    """Something malformed, too large, or of wrong types."""
    path = chance.choice((CHAT, COMPLETIONS))
    body = functools.partial(_body, path)
    bad: Sequence[tuple[bytes, tuple[int, ...]]] = (
        (b"", (400,)),
        (b'{"model": "model", "prompt": ', (400,)),
        (b"[" * 100_000, (400,)),
        (b"\xff\xfe\x00", (400,)),
        (chance.randbytes(chance.randrange(1, 5000)), (400,)),
        (body("a" * (max_body_bytes + 1), "a" * (max_body_bytes + 1)), (413,)),
        (body({"a": 1}, 3), (400,)),
        (body([1 << 70], [None]), (400,)),
        (body("a", [{"role": "root", "content": "a"}], max_tokens=-2), (400,)),
        (body("a", [], temperature="hot"), (400,)),
        (body("a b " * 100_000, [{"role": "user", "content": "a b " * 100_000}]), (400,)),
        (body("a", [{"role": "user", "content": "a"}], model="another"), (404,)),
    )
    content, statuses = chance.choice(bad)
    return Nonsense(path, content, statuses)


def _body(path: str, prompt: object, messages: object, **fields: object) -> bytes:
    """A body for one of the two paths, which refuse each other's fields."""
    sent = {"messages": messages} if path == CHAT else {"prompt": prompt}
    return json.dumps({"model": "model"} | sent | fields).encode()
