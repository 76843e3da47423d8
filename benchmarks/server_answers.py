"""What a server says to a question, streamed or whole, in one form that can be compared."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass(slots=True)
class Choice:
    """One of an answer's choices. logprobs: of its tokens one by one, as they came."""

    text: str = ""
    finish_reason: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """What does not depend on when and beside whom a question is asked."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    num_tokens: tuple[int, int] = (0, 0)  # of prompt and answers
    refusal: str = ""


def read_whole(response: httpx.Response) -> Answer:
    values = response.json()
    if response.status_code != 200:
        return Answer(response.status_code, refusal=values["error"]["message"])
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
    async for line in response.aiter_lines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[len("data: ") :])
        if "error" in event:
            return Answer(200, choices, refusal=event["error"]["message"])
        for each in event["choices"]:
            _add(choices.setdefault(each["index"], Choice()), each, each.get("delta") or each)
        if event.get("usage"):
            num_tokens = _counts(event["usage"])
    return Answer(200, choices, num_tokens)


def _add(choice: Choice, values: dict[str, Any], said: dict[str, Any]) -> None:
    choice.text += said.get("content") or said.get("text") or ""
    choice.finish_reason = values.get("finish_reason") or choice.finish_reason
    for call in said.get("tool_calls") or ():
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
