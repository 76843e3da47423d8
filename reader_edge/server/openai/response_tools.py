"""Tools of responses: functions, custom tools, whose input is a text, and namespaces of both."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from reader_edge.server.api_error import ApiError
from reader_edge.server.completion import Json
from reader_edge.server.schema import JsonObject, ignoring_types
from reader_edge.server.tools import MAX_TOOLS, FlatTool, MaxTools, ToolName

INPUT = "input"  # the one parameter of a custom tool, as the model sees it
_MAX_NAME = 64
_OWN = "functions"  # Codex's name for the namespace of all that has none

_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
# What of a JSON string can be read before the rest is there: no half of an escape, nor of a pair.
_CERTAIN = re.compile(
    r"""(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}
        |\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*""",
    re.VERBOSE,
)


class AnyInput(JsonObject, tag_field="type", tag="text"):
    """Any text."""


class GrammarInput(JsonObject, tag_field="type", tag="grammar"):
    """A text of a form. A regex holds it wherever calls are held; Lark does not reach into the JSON of a call."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(JsonObject, tag_field="type", tag="custom", ignored="defer_loading"):
    """One whose input is a text. The model sees a function of one text."""

    name: ToolName
    description: str | None = None
    format: AnyInput | GrammarInput = AnyInput()

    @property
    def declared(self) -> Json:
        """As chats declare a function."""
        description, text = self.description or "", {"type": "string"}
        if isinstance(self.format, GrammarInput):
            form = f"The {INPUT} follows this grammar ({self.format.syntax}):\n{self.format.definition}"
            description = f"{description}\n\n{form}".lstrip()
            text |= {"pattern": f"^(?:{self.format.definition})$"} if self.format.syntax == "regex" else {}
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        function = {"name": self.name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}


_NAMESPACED = "function custom"


class ToolNamespace(JsonObject, tag_field="type", tag="namespace"):
    """Tools under one name, as those of an MCP server."""

    name: ToolName
    tools: Annotated[tuple[FlatTool | CustomTool, ...], MaxTools, ignoring_types(_NAMESPACED)]
    description: str | None = None


ResponseTools = Annotated[
    tuple[FlatTool | CustomTool | ToolNamespace, ...], MaxTools, ignoring_types(f"{_NAMESPACED} namespace")
]


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool by the name under which the model sees it."""

    tool: FlatTool | CustomTool
    namespace: str | None = None

    @property
    def name(self) -> str:
        return joined_name(self.namespace, self.tool.name)

    @property
    def declared(self) -> dict[str, Any]:
        """As chats declare it."""
        declared: dict[str, Any] = self.tool.declared
        return declared | {"function": declared["function"] | {"name": self.name}}

    @property
    def is_custom(self) -> bool:
        """Whether its input is a text."""
        return isinstance(self.tool, CustomTool)


def joined_name(namespace: str | None, name: str) -> str:
    """One name of both, of as many characters as templates and grammars take."""
    if namespace in (None, "", _OWN):
        return name
    return f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"[-_MAX_NAME:]


def callable_tools(tools: Sequence[FlatTool | CustomTool | ToolNamespace]) -> list[CallableTool]:
    """All that can be called, one after the other. Raises ApiError for too many."""
    found = [each for tool in tools for each in _callable(tool)]
    if len(found) > MAX_TOOLS:
        raise ApiError(400, f"'tools' has {len(found)} tools with those of namespaces: give {MAX_TOOLS}.", "tools")
    return found


def _callable(tool: FlatTool | CustomTool | ToolNamespace) -> Iterator[CallableTool]:
    if isinstance(tool, ToolNamespace):
        yield from (CallableTool(each, tool.name) for each in tool.tools)
    else:
        yield CallableTool(tool)


def shown_tool(tool: FlatTool | CustomTool | ToolNamespace) -> Json:
    """As a response repeats it."""
    if isinstance(tool, ToolNamespace):
        return {"type": "namespace", "name": tool.name, "description": tool.description or ""} | {
            "tools": [shown_tool(each) for each in tool.tools]
        }
    given = {name: value for name, value in msgspec.to_builtins(tool).items() if value is not None}
    return given if isinstance(tool, CustomTool) else {"strict": None, "parameters": None, **given}


class FreeformInput:
    """Reads the text out of a custom call's JSON arguments, as they come. text: what was read so far."""

    def __init__(self) -> None:
        self.text = ""
        self._arguments: list[str] = []
        self._held = ""
        self._is_begun = False

    def push(self, piece: str) -> str:
        """What a further piece of the arguments tells of the text."""
        self._arguments.append(piece)
        self._held += piece
        if not self._is_begun:
            begin = _BEGIN.match(self._held)
            if begin is None:
                return ""
            self._held, self._is_begun = self._held[begin.end() :], True
        certain = _CERTAIN.match(self._held)
        assert certain is not None
        self._held = self._held[certain.end() :]
        return self._taken(json.loads(f'"{certain[0]}"', strict=False))

    def end(self) -> str:
        """The rest, where the call has ended: its whole arguments may be others than the declared one."""
        try:
            arguments = json.loads("".join(self._arguments), strict=False)
        except (ValueError, RecursionError):
            arguments = None
        if isinstance(arguments, dict):
            arguments = arguments.get(INPUT, next(iter(arguments.values()), None))
        text = "".join(self._arguments)
        if f'{{"{INPUT}":"'.startswith("".join(text.split())):  # cut before the text began
            text = ""
        whole = arguments if isinstance(arguments, str) else self.text or text
        return self._taken(whole[len(self.text) :]) if whole.startswith(self.text) else ""

    def _taken(self, text: str) -> str:
        self.text += text
        return text
