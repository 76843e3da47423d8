"""The tools that a request declares, and which of them the answer must call."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from reader_edge.server.api_error import ApiError, agreed, wrong_value
from reader_edge.server.schema import JsonObject
from reader_edge_runtime.text.conversation_check import TOOL_NAME, TOOL_NAME_WORDS
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from reader_edge_runtime.untrusted.user_input import short_repr

MAX_TOOLS = 128

Json = dict[str, Any]
Parameters = Annotated[dict[str, Any], Meta(description="a JSON schema, an object")]
ToolName = Annotated[str, Meta(pattern=TOOL_NAME, description=TOOL_NAME_WORDS)]


class Function(JsonObject):
    """What a function is called, what it does, and a JSON schema of its parameters."""

    name: ToolName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    @property
    def declared(self) -> Json:
        """As chats declare it, and as templates know it."""
        names = ("name", "description", "parameters", "strict")
        given = {name: getattr(self, name) for name in names}
        return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


class Tool(JsonObject, tag_field="type", tag="function", ignored="cache_control"):
    """A function, as chats declare it."""

    function: Function
    strict: bool | None = None  # where some clients have it

    @property
    def declared(self) -> Json:
        """As chats declare it. Raises ApiError."""
        declared = self.function.declared
        strict = agreed("tools[].function.strict", self.function.strict, "tools[].strict", self.strict)
        return declared if strict is None else declared | {"function": declared["function"] | {"strict": strict}}


class FlatTool(Function, tag_field="type", tag="function", ignored="defer_loading output_schema"):
    """A function, as responses declare it: its members stand beside its type."""


class ClientTool(
    JsonObject, tag_field="type", tag="custom", ignored="allowed_callers cache_control eager_input_streaming"
):
    """A tool that the client runs, as Anthropic's messages declare it. defer_loading: the prompt has it once a turn
    names it, as what a search for tools found."""

    name: ToolName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    defer_loading: bool = False

    @property
    def declared(self) -> Json:
        """As chats declare it, and as templates know it."""
        given = {"description": self.description, "parameters": self.input_schema, "strict": self.strict}
        function = {"name": self.name} | {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": function}


class Named(JsonObject):
    """The name of a function."""

    name: str


class NamedTool(JsonObject, tag_field="type", tag="function"):
    """The function to call, as chats name it."""

    function: Named

    @property
    def name(self) -> str:
        return self.function.name


class FlatNamedTool(Named, tag_field="type", tag="function"):
    """The function to call, as responses name it."""


class CustomNamedTool(Named, tag_field="type", tag="custom"):
    """The tool to call with a text."""


class Declared(Protocol):
    """A tool that can be called."""

    @property
    def declared(self) -> Json:
        """As chats declare it. Raises ApiError."""


_CHOICE = Meta(description="'none', 'auto', 'required', or one of the functions in 'tools' by name")
Choice = Literal["none", "auto", "required"]
ToolChoice = Annotated[Choice | NamedTool, _CHOICE]
FlatToolChoice = Annotated[Choice | FlatNamedTool | CustomNamedTool, _CHOICE]
MaxTools = Meta(max_length=MAX_TOOLS, description=f"a list of tools, at most {MAX_TOOLS}")


def tool_use_of(
    tools: Sequence[Declared],
    choice: Choice | NamedTool | FlatNamedTool | CustomNamedTool | None = None,
    is_parallel: bool = True,
) -> ToolUse:
    """choice: where it is None, tools may be called where there are some. Raises ApiError."""
    declared = tuple(tool.declared for tool in tools)
    names = tuple(str(tool["function"]["name"]) for tool in declared)
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        rest = "twice: give each tool its own."
        raise ApiError(400, f"'tools' has the name {twice!r} {rest}", "tools", public=f"'tools' has a name {rest}")
    choice = choice or ("auto" if tools else "none")
    if choice == "none" or (choice == "auto" and not tools):
        return ToolUse()
    if not tools:
        requested = choice if isinstance(choice, str) else choice.name
        rest = "but there are no 'tools': give some, or leave it out."
        public = f"'tool_choice' is given, {rest}"
        raise ApiError(400, f"'tool_choice' is {short_repr(requested)}, {rest}", "tool_choice", public=public)
    is_strict = any(tool["function"].get("strict") is True for tool in declared)
    if isinstance(choice, str):
        return ToolUse(declared, names, choice == "required", is_parallel, is_strict, choice)
    if choice.name not in names:
        words = f"one of the functions in 'tools' ({', '.join(names):.200}) by name"
        public = "one of the functions in 'tools' by name"
        raise wrong_value("tool_choice", choice.name, words, "tool_choice", public_words=public)
    return ToolUse(declared, (choice.name,), True, False, is_strict, msgspec.to_builtins(choice))
