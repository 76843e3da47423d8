"""The input of a response: messages, calls that the model made, and what the tools said."""

from typing import Any, cast

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.messages import call_message
from reader_edge_runtime import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PARTS = ("input_text", "output_text")


def read_input(value: object) -> list[Message]:
    """Of a text, or of a list of items. Raises ApiError."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise wrong_value("input", value, "a text or a list of messages", "input")
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        _add(messages, item if isinstance(item, dict) else {}, f"input[{number}]")
    return cast(list[Message], messages)


def _add(messages: list[dict[str, Any]], item: dict[str, object], place: str) -> None:
    match item.get("type", "message"):
        case "function_call":
            name, arguments, call_id = _texts(item, place, "name", "arguments", "call_id")
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call_message(name, arguments, call_id))
        case "function_call_output":
            (call_id,) = _texts(item, place, "call_id")
            content = _content(item.get("output"), f"{place}.output")
            messages.append({"role": "tool", "content": content, "tool_call_id": call_id})
        case kind:
            role = item.get("role")
            if kind != "message" or not isinstance(role, str) or role not in _ROLES:
                roles = ", ".join(_ROLES)
                words = f"a message with a 'role' of {roles}, a call of a function or its output"
                raise wrong_value(place, item or None, words, "input")
            messages.append({"role": _ROLES[role], "content": _content(item.get("content"), f"{place}.content")})


def _texts(item: dict[str, object], place: str, *names: str) -> list[str]:
    values = [item.get(name) for name in names]
    if not all(isinstance(value, str) for value in values):
        wanted = " and ".join(f"'{name}'" for name in names)
        raise ApiError(400, f"'{place}' must have the texts {wanted}, as a {item['type']} has.", "input")
    return cast(list[str], values)


def _content(content: object, place: str) -> str:
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(map(_is_text_part, parts)):
        raise wrong_value(place, content, "a text, or a list of parts of type 'input_text'", "input")
    return "".join(part["text"] for part in parts)


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _PARTS and isinstance(part.get("text"), str)
