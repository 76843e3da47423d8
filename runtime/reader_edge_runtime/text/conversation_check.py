"""The one check of conversations, whichever way they come: in Python, over a link, from a file or by HTTP."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reader_edge_runtime.errors import ConversationError, PromptError
from reader_edge_runtime.text.conversation import IMAGE_PART, REASONING, Conversation, Message, Tool
from reader_edge_runtime.untrusted.user_input import WITHHELD, short_repr, withheld

ROLES = ("system", "developer", "user", "assistant", "tool")
TOOL_NAME = "^[a-zA-Z0-9_.-]{1,64}$"
TOOL_NAME_WORDS = "1 to 64 letters, digits, '_', '-' or '.'"
# What clients leave in messages, and what changes nothing.
IGNORED = "id opts annotations cache_control parsed provider_specific_fields reasoning_details thinking_blocks"
_KNOWN = {"role", "content", "name", "tool_calls", "tool_call_id", "tool_name", "refusal", *REASONING, *IGNORED.split()}
MEDIA = ("image", "images", "image_url", "audio", "audios", "input_audio", "video", "videos", "file", "files")
_FUNCTION = ("name", "description", "parameters", "strict", "return")  # the last of transformers' own schemas
_CONTENT = "a text, or a list of parts of type 'text'"


def checked_conversation(conversation: Conversation, template: str | None = None) -> Conversation:
    """The same conversation as chat templates know it: each part says its type, a developer is the system to most.

    template: the source of the model's, which may know further fields of messages; None where it is not here.
    Raises PromptError for what no template can be given, or what none would tell the model.
    """
    messages, args = conversation.messages, conversation.template_args
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise PromptError(f"template_args is {short_repr(args)}, but must be a mapping of names to values.")
    taken = next((name for name in ("messages", "tools") if name in args), None)
    if taken is not None:
        raise PromptError(f"template_args holds {taken!r}, which a Conversation has itself: leave it out.")
    if isinstance(messages, list | tuple) and not messages:
        raise PromptError("The conversation is empty: give at least one message.")
    _check_final(conversation)
    check_tools(conversation.tools, template)
    return replace(conversation, messages=sound_messages(messages, template, bool(conversation.images)))


def sound_messages(messages: Sequence[Message], template: str | None = None, has_images: bool = False) -> list[Message]:
    """The messages of `checked_conversation`. has_images: whether parts may stand for some. Raises PromptError."""
    if not isinstance(messages, list | tuple):
        raise _wrong("messages", messages, "a list of messages")
    return [_sound_message(each, f"messages[{number}]", template, has_images) for number, each in enumerate(messages)]


def check_tools(tools: Sequence[Tool], template: str | None = None) -> None:
    """Raise PromptError unless these are tools, as `Conversation` has them, each of another name."""
    if not isinstance(tools, list | tuple):
        raise _wrong("tools", tools, "a list of tools")
    names: set[str] = set()
    for number, tool in enumerate(tools):
        place = f"tools[{number}]"
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            raise _wrong(place, tool, "an object with 'type' ('function') and 'function'")
        name = function.get("name")
        if not isinstance(name, str) or not re.search(TOOL_NAME, name):
            raise _wrong(f"{place}.function.name", name, TOOL_NAME_WORDS)
        if name in names:
            rest = "twice: give each tool its own."
            raise ConversationError(f"'tools' has the name {name!r} {rest}", "tools", f"'tools' has a name {rest}")
        names.add(name)
        _check_kind(function, "description", str, "a text", f"{place}.function")
        _check_kind(function, "parameters", Mapping, "a JSON schema, an object", f"{place}.function")
        for further in function:
            if further not in _FUNCTION and not _is_empty(function[further]):
                _check_further(further, function[further], f"{place}.function", template)


def _sound_message(message: Message, place: str, template: str | None, has_images: bool) -> Message:
    if not isinstance(message, Mapping):
        raise _wrong(place, message, "an object with 'role' and 'content'")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{place}.role", role, f"one of {', '.join(map(repr, ROLES))}")
    for name in message:
        if name not in _KNOWN and not _is_empty(message[name]):
            _check_further(name, message[name], place, template)
    for name in ("name", "tool_name", "tool_call_id", "refusal", *REASONING):
        _check_kind(message, name, str, "a text", place)
    calls = message.get("tool_calls")
    _check_calls(() if calls is None else calls, role, place)
    sound = {name: value for name, value in message.items() if name != "refusal"}
    content = message.get("content")
    if content is None and role == "assistant" and message.get("refusal"):
        sound["content"] = content = message["refusal"]  # which is the whole answer
    is_thought = role == "assistant" and any(message.get(name) for name in ("tool_calls", *REASONING))
    if content is None and not is_thought:
        raise _wrong(f"{place}.content", None, _CONTENT)
    if role == "developer" and template is not None and role not in template:
        sound["role"] = "system"
    if content is not None and not isinstance(content, str):
        sound["content"] = _sound_parts(content, f"{place}.content", has_images)
    return sound


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | tuple | Mapping) and not value)


def _sound_parts(parts: object, place: str, has_images: bool) -> list[Message]:
    if not isinstance(parts, list | tuple):
        raise _wrong(place, parts, _CONTENT)
    return [
        IMAGE_PART
        if has_images and part == IMAGE_PART
        else {"type": "text", "text": _text_of_part(part, f"{place}[{n}]")}
        for n, part in enumerate(parts)
    ]


def _text_of_part(part: object, place: str) -> str:
    if not isinstance(part, Mapping):
        raise _wrong(place, part, "an object with 'type' ('text') and 'text'")
    kind = part.get("type", "text")
    if kind != "text":
        raise _unread(place, f"of type {short_repr(kind)}", place)
    _check_kind(part, "text", str, "a text", place)
    if part.get("text") is None:
        raise _wrong(f"{place}.text", None, "a text")
    further = next((name for name in part if name not in ("type", "text", "cache_control")), None)
    if further is not None:
        raise _unread(f"{place}.{further}", short_repr(part[further]), place)
    return str(part["text"])


def _check_further(name: object, value: object, place: str, template: str | None) -> None:
    """Raise PromptError for a field that no template has a word for, so that the model would not know of it."""
    around, place = place, f"{place}.{name!s:.80}"
    if not isinstance(name, str):
        raise ConversationError(f"A field is called {short_repr(name)}, but must have a text as its name.", place)
    if name in MEDIA:
        raise _unread(place, short_repr(value), place)
    if template is not None and not re.search(rf"\b{re.escape(name)}\b", template):
        public = f"'{around}' has a field that is not known: leave it out."
        raise ConversationError(f"There is no field '{place}': leave it out.", place, public)


def _check_calls(calls: object, role: str, place: str) -> None:
    if not isinstance(calls, list | tuple):
        raise _wrong(f"{place}.tool_calls", calls, "a list of calls")
    if calls and role != "assistant":
        sentence = f"'{place}.tool_calls' are for the role 'assistant', which is {role!r} here: leave them out."
        raise ConversationError(sentence, f"{place}.tool_calls", sentence)  # which names a role that is known
    for number, call in enumerate(calls):
        at = f"{place}.tool_calls[{number}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or (call.get("type") or "function") != "function":
            raise _wrong(at, call, "an object with 'type' ('function') and 'function'")
        _check_kind(call, "id", str, "a text", at)
        if not isinstance(function.get("name"), str):
            raise _wrong(f"{at}.function.name", function.get("name"), "a text")
        if "arguments" not in function or not isinstance(function["arguments"], str | Mapping | None):
            raise _wrong(f"{at}.function.arguments", function.get("arguments"), "a text of JSON, or an object")


def _check_final(conversation: Conversation) -> None:
    """Raise PromptError where it is not clear whether an answer continues the last message."""
    is_continuing = conversation.continues_final_message
    if not isinstance(is_continuing, bool):
        raise PromptError(f"continues_final_message is {short_repr(is_continuing)}, but must be True or False.")
    if is_continuing and conversation.template_args.get("add_generation_prompt"):
        raise PromptError("An answer cannot both continue the last message and begin a new one: ask for one of them.")


def _check_kind(holder: Mapping[str, Any], name: str, kind: type, words: str, place: str) -> None:
    if not isinstance(holder.get(name), kind | None):
        raise _wrong(f"{place}.{name}", holder[name], words)


def _wrong(place: str, value: object, words: str) -> ConversationError:
    def sentence(value: str) -> str:
        return f"'{place}' {value}, but must be {words}."

    given, public = ("is missing",) * 2 if value is None else (f"is {short_repr(value)}", f"is {withheld(value)}")
    return ConversationError(sentence(given), place, sentence(public))


def _unread(place: str, what: str, public_place: str) -> ConversationError:
    """public_place: the place, or that around it, without a name that the caller chose."""
    rest = "but the model reads texts alone: leave it out, or say in words what it holds."
    return ConversationError(f"'{place}' is {what}, {rest}", place, f"'{public_place}' is {WITHHELD}, {rest}")
