"""Requests of all kinds for a server under load, nonsense included, made by chance from a seed."""

import functools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

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


@dataclass(slots=True)
class Choice:
    """One of an answer's choices. logprobs: of its tokens one by one, as they came."""

    text: str = ""
    finish_reason: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """What does not depend on when and beside whom a question comes."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    num_tokens: tuple[int, int] = (0, 0)  # of prompt and answers
    refusal: str = ""


def read_whole(response: httpx.Response) -> Answer:
    values = response.json()
    if response.status_code != 200:
        return Answer(response.status_code, refusal=values["error"]["message"])
    if values.get("object") == "response":
        return _read_response(values)
    choices: dict[int, Choice] = {}
    for each in values["choices"]:
        _add(choices.setdefault(each["index"], Choice()), each, each.get("message") or each)
    return Answer(200, choices, _counts(values["usage"]))


async def read_stream(response: httpx.Response) -> Answer:
    if response.status_code != 200:
        await response.aread()
        return read_whole(response)
    choices: dict[int, Choice] = {}
    num_tokens = (0, 0)
    deltas = ""
    async for line in response.aiter_lines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[len("data: ") :])
        if "error" in event:
            return Answer(200, choices, refusal=event["error"]["message"])
        if event.get("type") in ("response.completed", "response.incomplete"):
            answer = _read_response(event["response"])
            is_whole = deltas == answer.choices[0].text
            return answer if is_whole else Answer(200, answer.choices, refusal=f"The pieces say {deltas!r}.")
        if "type" in event:
            deltas += event["delta"] if event["type"] == "response.output_text.delta" else ""
            if event["type"] in ("response.failed", "error"):
                return Answer(200, choices, refusal=json.dumps(event))
            continue
        for each in event["choices"]:
            _add(choices.setdefault(each["index"], Choice()), each, each.get("delta") or each)
        if event.get("usage"):
            num_tokens = _counts(event["usage"])
    return Answer(200, choices, num_tokens)


def _read_response(values: dict[str, Any]) -> Answer:
    """Of `/v1/responses`: its texts in turn, and its calls."""
    choice = Choice(finish_reason=values["status"])
    for item in values["output"]:
        if item["type"] == "function_call":
            choice.calls.append((item["name"], item["arguments"]))
        else:
            choice.text += "".join(part["text"] for part in item["content"])
    return Answer(200, {0: choice}, (values["usage"]["input_tokens"], values["usage"]["output_tokens"]))


def _add(choice: Choice, values: dict[str, Any], output: dict[str, Any]) -> None:
    choice.text += output.get("content") or output.get("text") or ""
    choice.finish_reason = values.get("finish_reason") or choice.finish_reason
    for call in output.get("tool_calls") or ():
        name, arguments = call["function"].get("name"), call["function"].get("arguments", "")
        if name is None:
            before = choice.calls[call["index"]]
            choice.calls[call["index"]] = (before[0], before[1] + arguments)
        else:
            choice.calls.append((name, arguments))
    _add_logprobs(choice, values.get("logprobs"))


def _add_logprobs(choice: Choice, values: dict[str, Any] | None) -> None:
    if not values:
        return
    if "content" in values:
        choice.logprobs += values["content"] or []
    else:
        choice.logprobs += zip(values["tokens"], values["token_logprobs"], values["top_logprobs"], strict=True)


def _counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]
