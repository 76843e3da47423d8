"""The input of `/v1/responses`: its items, earlier answers among them, as messages of a conversation."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from reader_edge.server.api_error import ApiError
from reader_edge.server.openai.messages import MAX_ITEMS, call_message, image_part
from reader_edge.server.openai.response_tools import INPUT, ResponseTools, joined_name
from reader_edge.server.schema import JsonObject, decode, ignoring_types
from reader_edge_runtime import Message
from reader_edge_runtime.text.image_parts import bytes_of_url


class _Text(JsonObject, ignored="annotations logprobs"):
    text: str


class InputText(_Text, tag_field="type", tag="input_text"):
    """A part of a message of a user."""


class OutputText(_Text, tag_field="type", tag="output_text"):
    """A part of an answer of the model."""


class ReasoningText(_Text, tag_field="type", tag="reasoning_text"):
    """A part of what the model thought."""


class InputImage(JsonObject, tag_field="type", tag="input_image", dict=True):
    """A picture, as a data URL."""

    detail: str | None = None
    file_id: str | None = None
    image_url: str | None = None

    @cached_property
    def part(self) -> dict[str, Any]:
        """As conversations have it; of those that go on from a kept response, the same bytes. Raises ApiError."""
        if self.image_url is None:
            sentence = "'input' has a picture without 'image_url', but no files are kept here: give it as a data URL."
            raise ApiError(400, sentence, "input")
        return image_part(bytes_of_url(self.image_url, "input"))


_PARTS = Meta(description="a text, or a list of parts of type 'input_text' or 'input_image'")
Content = Annotated[str | Annotated[list[InputText | OutputText | InputImage], Meta(max_length=MAX_ITEMS)], _PARTS]


class _Item(JsonObject, ignored="id status"):
    """One item of an input."""


class InputMessage(_Item, tag_field="type", tag="message", ignored="phase"):
    """A message of any role."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCall(_Item, tag_field="type", tag="function_call"):
    """A call that the model made."""

    name: str
    arguments: str
    call_id: str
    namespace: str | None = None


class FunctionCallOutput(_Item, tag_field="type", tag="function_call_output", ignored="name success"):
    """The result of the function."""

    call_id: str
    output: Content


class CustomToolCall(_Item, tag_field="type", tag="custom_tool_call"):
    """A call with a text that the model made."""

    name: str
    input: str
    call_id: str
    namespace: str | None = None


class CustomToolCallOutput(FunctionCallOutput, tag_field="type", tag="custom_tool_call_output"):
    """The result of the tool."""


class AdditionalTools(_Item, tag_field="type", tag="additional_tools", ignored="role"):
    """Tools besides those of the request."""

    tools: ResponseTools


class LocalShellCall(_Item, tag_field="type", tag="local_shell_call"):
    """A call of OpenAI's own shell, in a session that another model began."""

    action: dict[str, Any]
    call_id: str | None = None


class Reasoning(_Item, tag_field="type", tag="reasoning", ignored="summary encrypted_content"):
    """What the model thought before it answered."""

    content: tuple[ReasoningText, ...] = ()


InputItem = (
    InputMessage
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | LocalShellCall
    | AdditionalTools
    | Reasoning
)
# What OpenAI's own tools did in past turns, and marks of a client: nothing that a template could tell.
_WITHOUT_TEXT = """
    code_interpreter_call compaction compaction_summary computer_call computer_call_output
    context_compaction file_search_call ghost_snapshot image_generation_call mcp_approval_request
    mcp_approval_response mcp_call mcp_list_tools tool_search_call tool_search_output web_search_call
"""
_ITEMS = f"a text or a list of messages, calls of tools and their outputs, at most {MAX_ITEMS}"
InputItems = Annotated[
    str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS), ignoring_types("", _WITHOUT_TEXT)],
    Meta(description=_ITEMS),
]


class _Output(JsonObject):
    items: InputItems


def items_of_output(output: object) -> Sequence[InputItem]:
    """A response's own items, as those of an input."""
    items = decode({"items": copy.deepcopy(output)}, _Output).items
    assert not isinstance(items, str)
    return items


def to_messages_of_input(items: str | Sequence[_Item]) -> list[Message]:
    """Messages as templates know them. What was thought before nothing else was written is a message of its own."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    thought = ""
    for item in items:
        match item:
            case Reasoning():
                thought += _text(item.content)
                continue
            case AdditionalTools():
                continue
            case FunctionCall() | CustomToolCall() | LocalShellCall():
                if not messages or messages[-1]["role"] != "assistant" or thought:
                    messages.append(_assistant_message("", thought))
                messages[-1].setdefault("tool_calls", []).append(_call_of(item))
            case InputMessage(role="assistant"):
                messages.append(_assistant_message(_text(item.content), thought))
            case FunctionCallOutput() | InputMessage():
                messages += [_assistant_message(None, thought)] if thought else []
                messages.append(_user_message(item))
        thought = ""
    return cast(list[Message], [*messages, _assistant_message(None, thought)] if thought else messages)


def _call_of(item: FunctionCall | CustomToolCall | LocalShellCall) -> dict[str, Any]:
    match item:
        case LocalShellCall():
            return call_message("local_shell", item.action, item.call_id)
        case CustomToolCall():
            return call_message(joined_name(item.namespace, item.name), {INPUT: item.input}, item.call_id)
    return call_message(joined_name(item.namespace, item.name), item.arguments, item.call_id)


def _user_message(item: FunctionCallOutput | InputMessage) -> dict[str, Any]:
    if isinstance(item, FunctionCallOutput):
        return {"role": "tool", "content": _content(item.output), "tool_call_id": item.call_id}
    return {"role": "system" if item.role == "developer" else item.role, "content": _content(item.content)}


def _assistant_message(text: str | None, thought: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"reasoning_content": thought} if thought else {})


def _content(content: str | Sequence[_Text | InputImage]) -> str | list[dict[str, Any]]:
    """A text where it is nothing else. Raises ApiError."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return _text(content)
    return [part.part if isinstance(part, InputImage) else {"type": "text", "text": _text([part])} for part in content]


def _text(content: str | Sequence[_Text | InputImage]) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(part, InputImage) for part in content):
        sentence = "'input' has a picture ('input_image') in a message of the assistant: leave it out."
        raise ApiError(400, sentence, "input", "unsupported_parameter")
    return "".join(part.text for part in content if isinstance(part, _Text))
