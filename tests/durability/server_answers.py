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
