"""The items of a response: those of its input, and those of its answer with the events that stream them."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from reader_edge.server.completion import THOUGHT, AnswerParser, Json
from reader_edge.server.openai.messages import MAX_ITEMS, call_message
from reader_edge.server.schema import JsonObject
from reader_edge_runtime import GenerationChunk, GenerationResult, Message
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, new_call_id

Event = tuple[str, Json]

_TEXT = -1
_KINDS = {_TEXT: "output_text", THOUGHT: "reasoning_text"}


class ResponseItems:
    """Reads one answer. output: its items so far. Events are their kinds, with their fields."""

    def __init__(self, parser: AnswerParser) -> None:
        self.output: list[Json] = []
        self._parser = parser
        self._number: int | None = None  # of the call that is coming, as `AnswerDelta` has it
        self._texts: list[str] = []

    def push(self, answered: GenerationChunk | GenerationResult) -> Iterator[Event]:
        """A further piece of the answer, or the whole of it."""
        for delta in self._parser.push(answered):
            if delta.call != self._number:
                yield from self._end("completed")
                yield from self._begin(delta)
            if delta.text:
                self._texts.append(delta.text)
                yield f"{self._kind}.delta", self._place | {"delta": delta.text} | self._logprobs

    def end(self, status: str) -> Iterator[Event]:
        """The answer has ended. status: of the last item. An answer that says nothing is a text of no characters."""
        if not self.output:
            yield from self._begin(AnswerDelta(""))
        yield from self._end("incomplete" if self._parser.is_inside_call else status)

    @property
    def _kind(self) -> str:
        """The kind of the events that tell the item's text."""
        return _KINDS.get(self._number or 0, "function_call_arguments")

    @property
    def _logprobs(self) -> Json:
        return {"logprobs": []} if self._kind == "output_text" else {}

    @property
    def _place(self) -> Json:
        item = self.output[-1]
        place: Json = {"output_index": len(self.output) - 1, "item_id": item["id"]}
        return place | ({} if item["type"] == "function_call" else {"content_index": 0})

    def _begin(self, delta: AnswerDelta) -> Iterator[Event]:
        self._number, self._texts = delta.call, []
        made = {_TEXT: _message, THOUGHT: _reasoning}
        self.output.append(made[delta.call]() if delta.call in made else _call(delta.name or ""))
        yield "output_item.added", {"output_index": len(self.output) - 1, "item": dict(self.output[-1])}
        if delta.call in made:
            yield "content_part.added", self._place | {"part": self._part("")}

    def _end(self, status: str) -> Iterator[Event]:
        if self._number is None:
            return
        item, text = self.output[-1], "".join(self._texts)
        if self._number in _KINDS:
            part = self._part(text)
            item |= {"content": [part]}
            yield f"{self._kind}.done", self._place | {"text": text} | self._logprobs
            yield "content_part.done", self._place | {"part": part}
        else:
            item |= {"arguments": text}
            yield f"{self._kind}.done", self._place | {"name": item["name"], "arguments": text}
        item |= {"status": status}
        yield "output_item.done", {"output_index": len(self.output) - 1, "item": item}
        self._number = None

    def _part(self, text: str) -> Json:
        more: Json = {"annotations": [], "logprobs": []} if self._kind == "output_text" else {}
        return {"type": self._kind, "text": text, **more}


def _message() -> Json:
    name = f"msg_{secrets.token_hex(24)}"
    return {"id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def _reasoning() -> Json:
    name = f"rs_{secrets.token_hex(24)}"
    return {"id": name, "type": "reasoning", "summary": [], "status": "in_progress", "content": []}


def _call(name: str) -> Json:
    ids: Json = {"id": f"fc_{secrets.token_hex(24)}", "call_id": new_call_id()}
    return ids | {"type": "function_call", "name": name, "arguments": "", "status": "in_progress"}


class _Text(JsonObject, ignored="annotations logprobs"):
    text: str


class InputText(_Text, tag_field="type", tag="input_text"):
    """A part of a message of a user."""


class OutputText(_Text, tag_field="type", tag="output_text"):
    """A part of an answer of the model."""


class ReasoningText(_Text, tag_field="type", tag="reasoning_text"):
    """A part of what the model thought."""


_PARTS = Meta(description="a text, or a list of parts of type 'input_text'")
Content = Annotated[str | Annotated[list[InputText | OutputText], Meta(max_length=MAX_ITEMS)], _PARTS]


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


class FunctionCallOutput(_Item, tag_field="type", tag="function_call_output"):
    """The result of the function."""

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
            case FunctionCall():
                if not messages or messages[-1]["role"] != "assistant" or thought:
                    messages.append(_assistant_message("", thought))
                call = call_message(item.name, item.arguments, item.call_id)
                messages[-1].setdefault("tool_calls", []).append(call)
            case InputMessage(role="assistant"):
                messages.append(_assistant_message(_text(item.content), thought))
            case FunctionCallOutput() | InputMessage():
                messages += [_assistant_message(None, thought)] if thought else []
                messages.append(_user_message(item))
        thought = ""
    return cast(list[Message], [*messages, _assistant_message(None, thought)] if thought else messages)


def _user_message(item: FunctionCallOutput | InputMessage) -> dict[str, Any]:
    if isinstance(item, FunctionCallOutput):
        return {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
    return {"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)}


def _assistant_message(text: str | None, thought: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"reasoning_content": thought} if thought else {})


def _text(content: str | Sequence[_Text]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
