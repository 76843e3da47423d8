"""A conversation with tools that the assistant may call, described to models whose templates know none."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.outside.user_input import shown
from reader_edge_runtime.text.calls.call_form import CALL_BEGIN, CALL_END

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
    """A prompt: messages, tools in OpenAI's format, and variables of the chat template.

    messages: each with a text "role". The "content" is a text, null, or a list of parts, and may be missing. All other
        keys, such as "tool_calls", "tool_call_id", "name" and "reasoning_content", reach the template as they are.
    tools: objects with "type" and "function", which has "name", "description" and "parameters" (a JSON schema).
    template_args: further variables of the template by name, e.g. {"enable_thinking": False}; clients call them
        `chat_template_kwargs`. They override special tokens of the same names.
    continues_final_message: the answer continues the last message's text instead of being a message of its own.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    continues_final_message: bool = False


Prompt = str | Sequence[Message]
Encodable = Prompt | Conversation | Sequence[int]


def check_conversation(conversation: Conversation) -> None:
    """Raise PromptError for what no chat template can be given."""
    messages, args = conversation.messages, conversation.template_args
    if not isinstance(messages, list | tuple) or not isinstance(conversation.tools, list | tuple):
        raise PromptError("A Conversation has a list of messages and a list of tools.")
    if not messages:
        raise PromptError("The conversation is empty: give at least one message.")
    for tool in conversation.tools:
        if not isinstance(tool, Mapping):
            raise PromptError(f"A tool is an object with 'type' and 'function', got {shown(tool)}.")
    for message in messages:
        if not is_message(message):
            raise PromptError(f"A message needs a text 'role' and a 'content', got {shown(message)}.")
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise PromptError(f"template_args is {shown(args)}, but must be a mapping of names to values.")
    taken = [name for name in ("messages", "tools") if name in args]
    if taken:
        raise PromptError(f"template_args holds {taken[0]!r}, which a Conversation has itself: leave it out.")
    _check_final(conversation)


def _check_final(conversation: Conversation) -> None:
    """Raise PromptError where it is not clear whether an answer continues the last message."""
    is_continuing = conversation.continues_final_message
    if not isinstance(is_continuing, bool):
        raise PromptError(f"continues_final_message is {shown(is_continuing)}, but must be True or False.")
    if is_continuing and conversation.template_args.get("add_generation_prompt"):
        raise PromptError("An answer cannot both continue the last message and begin a new one: ask for one of them.")


def is_message(value: object) -> bool:
    """Whether this is a message as `Conversation` wants it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        return False
    calls = value.get("tool_calls")
    calls = () if calls is None else calls
    if not isinstance(calls, list | tuple) or not all(map(_is_call, calls)):
        return False
    return isinstance(value.get("content"), str | list | tuple | None) and len(value) > 1


def _is_call(value: object) -> bool:
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str) and "arguments" in function


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
        said = text_of(shown[0])
        parts = [said, text] if shown[0]["role"] == "system" else [text, said]
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
        said = {"name": call["function"]["name"], "arguments": _object_of(call["function"]["arguments"])}
        parts.append(f"{CALL_BEGIN}{json.dumps(said, ensure_ascii=False)}{CALL_END}")
    return {"role": message["role"], "content": "\n".join(parts)}


def _object_of(arguments: Any) -> Any:
    """Arguments as they are meant, where a client gave them as JSON."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
