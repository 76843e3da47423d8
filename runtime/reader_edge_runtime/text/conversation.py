"""A conversation with tools that the assistant may call, described to models whose templates know none."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from reader_edge_runtime.images.decode import ImageSource
from reader_edge_runtime.text.tool_calls.call_syntax import CALL_BEGIN, CALL_END

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
IMAGE_PART: Message = {"type": "image"}  # of a content, as chat templates know it

# What clients call the reasoning of a message. transformers fills the first two from any of them.
REASONING = ("reasoning_content", "thinking", "reasoning")

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
    """A prompt: messages, tools in OpenAI's format, and variables of the chat template.

    messages: each with a "role" ("system", "developer", "user", "assistant" or "tool") and a "content", a text or a
        list of parts of type "text", which may be missing beside "tool_calls" or reasoning. "name", "tool_call_id",
        "reasoning_content" and fields that the model's template knows reach it as they are; all others are refused.
    tools: objects with "type" and "function", which has "name", "description" and "parameters" (a JSON schema).
    template_args: further variables of the template by name, e.g. {"enable_thinking": False}; clients call them
        `chat_template_kwargs`. They override special tokens of the same names.
    continues_final_message: the answer continues the last message's text instead of being a message of its own.
    images: paths, bytes or PIL images, for models that see: one for each part {"type": "image"} of the messages; where
        there is none, they stand before what the user says last.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    continues_final_message: bool = False
    images: Sequence[ImageSource] = ()


Prompt = str | Sequence[Message]
Encodable = Prompt | Conversation | Sequence[int]


def without_thinking(prompt: Encodable) -> Encodable:
    """Messages whose template is not to begin a thought, where it has a switch for that and nobody has set it."""
    if not isinstance(prompt, Conversation):
        if not isinstance(prompt, list | tuple) or not prompt or not isinstance(prompt[0], Mapping):
            return prompt
        prompt = Conversation(cast(Sequence[Message], prompt))
    return replace(prompt, template_args={"enable_thinking": False, **prompt.template_args})


def text_of(message: Message) -> str:
    """A message's content as one text: of a list of parts, the texts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def as_texts(messages: Sequence[Message], tools: Sequence[Tool], has_system: bool = True) -> list[Message]:
    """The same conversation for a template that knows neither tools nor calls: as its roles and texts alone.

    has_system: whether it knows the system's role; else tools are described in the first message.
    """
    shown: list[Message] = [_as_text(message) for message in messages]
    if not tools:
        return shown
    text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if shown and (shown[0]["role"] == "system" or not has_system):
        first = text_of(shown[0])
        parts = [first, text] if shown[0]["role"] == "system" else [text, first]
        return [{"role": shown[0]["role"], "content": "\n\n".join(parts)}, *shown[1:]]
    return [{"role": "system", "content": text}, *shown]


def _as_text(message: Message) -> Message:
    content = text_of(message)
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    parts = [content] if content else []
    for call in message["tool_calls"]:
        function = {"name": call["function"]["name"], "arguments": _object_of(call["function"]["arguments"])}
        parts.append(f"{CALL_BEGIN}{json.dumps(function, ensure_ascii=False)}{CALL_END}")
    return {"role": message["role"], "content": "\n".join(parts)}


def _object_of(arguments: Any) -> Any:
    """Arguments as they are meant, where a client gave them as JSON."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
