"""The messages of a chat, those of tools and calls included."""

import json
from typing import Any, cast

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge_runtime import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_KNOWN = ("role", "content", "name", "refusal", "tool_calls", "tool_call_id")


def read_messages(values: list[object]) -> list[Message]:
    """Raises ApiError."""
    if not values:
        raise ApiError(400, "'messages' must have at least one message.", "messages")
    return [_message(each, f"messages[{number}]") for number, each in enumerate(values)]


def _message(value: object, place: str) -> Message:
    if not isinstance(value, dict):
        raise wrong_value(place, value, "an object with 'role' and 'content'", "messages")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong_value(f"{place}.role", role, f"one of {', '.join(_ROLES)}", "messages")
    if not isinstance(value.get("name"), str | None):
        raise wrong_value(f"{place}.name", value["name"], "a text", "messages")
    extra = sorted(name for name in value if name not in _KNOWN and value[name])
    if extra:
        raise ApiError(400, f"'{place}.{extra[0]:.60}' is not supported here: leave it out.", "messages")
    calls = _calls(value.get("tool_calls"), f"{place}.tool_calls") if role == "assistant" else []
    if value.get("tool_calls") and role != "assistant":
        raise ApiError(400, f"'{place}.tool_calls' are for the role 'assistant' alone.", "messages")
    content = value.get("content")
    message: dict[str, Any] = {"role": _ROLES[role]}
    message["content"] = "" if content is None and calls else text_of(content, f"{place}.content")
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        if not isinstance(value.get("tool_call_id"), str):
            given = value.get("tool_call_id")
            raise wrong_value(f"{place}.tool_call_id", given, "the id of the call it answers", "messages")
        message["tool_call_id"] = value["tool_call_id"]
        if isinstance(value.get("name"), str):
            message["name"] = value["name"]  # some templates tell it
    return message


def _calls(value: object, place: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_value(place, value, "a list of calls", "messages")
    return [_call(each, f"{place}[{number}]") for number, each in enumerate(value)]


def _call(value: object, place: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name, arguments = (function.get(key) if isinstance(function, dict) else None for key in ("name", "arguments"))
    if not isinstance(name, str) or not isinstance(arguments, str):
        sentence = f"'{place}' must have the type 'function' and a 'function' with the texts 'name' and 'arguments'."
        raise ApiError(400, sentence, "messages")
    return call_message(name, arguments, cast(dict[str, object], value).get("id"))


def call_message(name: str, arguments: str, call_id: object) -> dict[str, Any]:
    """A call as templates want it: its arguments as an object, where they are one."""
    try:
        said = json.loads(arguments)
    except (ValueError, RecursionError):
        said = None
    head = {"id": call_id} if isinstance(call_id, str) else {}
    return head | {
        "type": "function",
        "function": {"name": name, "arguments": said if isinstance(said, dict) else arguments},
    }


def text_of(content: object, place: str, param: str = "messages") -> str:
    """A content's text: it may come in parts."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    ):
        raise wrong_value(place, content, "a text, or a list of parts of type 'text'", param)
    return "".join(cast(str, part["text"]) for part in parts)
