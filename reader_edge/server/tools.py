"""The tools that a request declares, which of them the answer must call, and the grammar that makes it."""

import re
from dataclasses import dataclass
from typing import Any, cast

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.fields import Fields

_MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: as chats declare them; none where none may be called. names: of those that may be called.

    is_required: whether the answer must be calls, is_parallel: of which there may be several. is_strict: whether calls
    follow their schemas also where the answer may be a text. choice: which of all that the request asks for.
    """

    tools: tuple[Json, ...] = ()
    names: tuple[str, ...] = ()
    is_required: bool = False
    is_parallel: bool = True
    is_strict: bool = False
    choice: object = "none"

    @classmethod
    def read(cls, fields: Fields, is_flat: bool = False) -> "ToolUse":
        """is_flat: what a function is stands beside its type, as responses have it. Raises ApiError."""
        values = fields.get("tools", list, [], "a list of tools")
        if len(values) > _MAX_TOOLS:
            raise ApiError(400, f"'tools' must have at most {_MAX_TOOLS} tools.", "tools")
        tools = [_tool(each, f"tools[{number}]", is_flat) for number, each in enumerate(values)]
        names = tuple(cast(str, tool["function"]["name"]) for tool in tools)
        if len(set(names)) < len(names):
            raise ApiError(400, "'tools' must have names that differ.", "tools")
        choice = fields.take("tool_choice") if fields.has("tool_choice") else "auto" if tools else "none"
        is_parallel = fields.get("parallel_tool_calls", bool, True, "true or false")
        if choice == "none" or (choice == "auto" and not tools):
            return cls()
        if not tools:
            raise ApiError(400, "'tool_choice' needs 'tools' to choose from.", "tool_choice")
        is_strict = any(tool["function"].get("strict") is True for tool in tools)
        if choice in ("auto", "required"):
            return cls(tuple(tools), names, choice == "required", is_parallel, is_strict, choice)
        return cls(tuple(tools), (_chosen(choice, names, is_flat),), True, False, is_strict, choice)


def _tool(value: object, place: str, is_flat: bool) -> Json:
    """A function as chats declare it. Raises ApiError unless it is one with a name."""
    function = _function(value, is_flat)
    if function is None:
        parts = "a 'name': others are not supported here" if is_flat else "a 'function'"
        raise ApiError(400, f"'{place}' must be an object with the type 'function' and {parts}.", "tools")
    place = place if is_flat else f"{place}.function"
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(400, f"'{place}.name' must be 1 to 64 letters, digits, '_', '-' or '.'.", "tools")
    if not isinstance(function.get("parameters"), dict | None):
        raise ApiError(400, f"'{place}.parameters' must be a JSON schema, an object.", "tools")
    if not isinstance(function.get("description"), str | None):
        raise ApiError(400, f"'{place}.description' must be a text.", "tools")
    return {"type": "function", "function": function}


def _function(value: object, is_flat: bool) -> Json | None:
    """What stands in an object of the type "function", or beside that."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return None
    function = {name: each for name, each in value.items() if name != "type"} if is_flat else value.get("function")
    return function if isinstance(function, dict) else None


def _chosen(choice: object, names: tuple[str, ...], is_flat: bool) -> str:
    """The name of the tool that must be called."""
    name = (_function(choice, is_flat) or {}).get("name")
    if not isinstance(name, str) or name not in names:
        words = f"'none', 'auto', 'required', or one of the functions in 'tools' ({', '.join(names):.200}) by name"
        raise wrong_value("tool_choice", choice, words, "tool_choice")
    return name
