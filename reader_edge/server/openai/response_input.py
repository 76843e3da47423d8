"""The input of a response: messages, calls that the model made, what it thought, and what the tools said."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from reader_edge.server.contract import JsonObject
from reader_edge.server.openai.messages import MAX_ITEMS, call_message
from reader_edge_runtime import Message


class _Text(JsonObject, ignored="annotations logprobs"):
    text: str


class InputText(_Text, tag_field="type", tag="input_text"):
    """A part of what a user said."""


class OutputText(_Text, tag_field="type", tag="output_text"):
    """A part of what the model said."""


class ReasoningText(_Text, tag_field="type", tag="reasoning_text"):
    """A part of what the model thought."""


_PARTS = Meta(description="a text, or a list of parts of type 'input_text'")
Content = Annotated[str | Annotated[list[InputText | OutputText], Meta(max_length=MAX_ITEMS)], _PARTS]


class _Item(JsonObject, ignored="id status"):
    """One item of an input."""


class InputMessage(_Item, tag_field="type", tag="message", ignored="phase"):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCall(_Item, tag_field="type", tag="function_call"):
    """A call that the model made."""

    name: str
    arguments: str
    call_id: str


class FunctionCallOutput(_Item, tag_field="type", tag="function_call_output"):
    """What the function said."""

    call_id: str
    output: Content


class Reasoning(_Item, tag_field="type", tag="reasoning", ignored="summary encrypted_content"):
    """What the model thought before it answered."""

    content: tuple[ReasoningText, ...] = ()


InputItem = InputMessage | FunctionCall | FunctionCallOutput | Reasoning
_ITEMS = f"a text or a list of messages, calls of functions and their outputs, at least one and at most {MAX_ITEMS}"
InputItems = Annotated[
    str
    | Annotated[
        list[InputMessage | FunctionCall | FunctionCallOutput | Reasoning], Meta(min_length=1, max_length=MAX_ITEMS)
    ],
    Meta(description=_ITEMS),
]


def to_messages_of_input(items: str | Sequence[_Item]) -> list[Message]:
    """Messages as templates know them. What was thought before nothing else was said is a message of its own."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    thought = ""
    for item in items:
        match item:
            case Reasoning():
                thought += _text(item.content)
                continue
            case FunctionCall():
                if not messages or messages[-1]["role"] != "assistant" or thought:
                    messages.append(_said_by_model("", thought))
                call = call_message(item.name, item.arguments, item.call_id)
                messages[-1].setdefault("tool_calls", []).append(call)
            case InputMessage(role="assistant"):
                messages.append(_said_by_model(_text(item.content), thought))
            case FunctionCallOutput() | InputMessage():
                messages += [_said_by_model(None, thought)] if thought else []
                messages.append(_said_to_model(item))
        thought = ""
    return cast(list[Message], [*messages, _said_by_model(None, thought)] if thought else messages)


def _said_to_model(item: FunctionCallOutput | InputMessage) -> dict[str, Any]:
    if isinstance(item, FunctionCallOutput):
        return {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
    return {"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)}


def _said_by_model(text: str | None, thought: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"reasoning_content": thought} if thought else {})


def _text(content: str | Sequence[_Text]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
