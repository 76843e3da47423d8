"""A conversation with tools that the assistant may call, and how those are told to models whose templates know none."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reader_edge_runtime.text.call_form import CALL_BEGIN, CALL_END

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

# The words of Qwen2.5's template, which many models have seen.
_INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt: messages, and tools as OpenAI describes them.

    messages: each with a text "role" and a text "content", which may be missing beside "tool_calls".
    tools: objects with "type" and "function", which has "name", "description" and "parameters" (a JSON schema).
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


Prompt = str | Sequence[Message]
Encodable = Prompt | Conversation | Sequence[int]


def is_message(value: object) -> bool:
    """Whether this is a message as `Conversation` wants it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        return False
    calls = value.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(map(_is_call, calls)):
        return False
    return isinstance(value.get("content"), str) or (value.get("content") is None and bool(calls))


def _is_call(value: object) -> bool:
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str) and "arguments" in function


def knows_system(source: str) -> bool:
    """Whether a chat template takes messages of the system, which Gemma's refuses."""
    return "System role not supported" not in source


def as_texts(messages: Sequence[Message], tools: Sequence[Tool], has_system: bool = True) -> list[Message]:
    """The same conversation for a template that knows neither tools nor calls: as its roles and texts alone.

    has_system: whether it knows the system's role; else tools are told in the first message.
    """
    shown: list[Message] = [_as_text(message) for message in messages]
    if not tools:
        return shown
    text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if shown and (shown[0]["role"] == "system" or not has_system):
        parts = [shown[0]["content"], text] if shown[0]["role"] == "system" else [text, shown[0]["content"]]
        return [{"role": shown[0]["role"], "content": "\n\n".join(parts)}, *shown[1:]]
    return [{"role": "system", "content": text}, *shown]


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    parts = [message["content"]] if message.get("content") else []
    for call in message["tool_calls"]:
        said = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        parts.append(f"{CALL_BEGIN}{json.dumps(said, ensure_ascii=False)}{CALL_END}")
    return {"role": message["role"], "content": "\n".join(parts)}
