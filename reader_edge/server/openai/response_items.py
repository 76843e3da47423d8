"""An answer as items of `/v1/responses` (messages, reasoning, calls), and the stream events that bring them."""

import secrets
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from reader_edge.server.completion import THOUGHT, AnswerParser, Json
from reader_edge.server.openai.response_tools import INPUT, CallableTool, FreeformInput
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, new_call_id

Event = tuple[str, Json]

_TEXT = -1
_KINDS = {_TEXT: "output_text", THOUGHT: "reasoning_text"}


class ResponseItems:
    """Reads one answer. output: its items so far. Events are their kinds, with their fields."""

    def __init__(self, parser: AnswerParser, tools: Mapping[str, CallableTool] = MappingProxyType({})) -> None:
        """tools: that may be called, by the names under which the model sees them."""
        self.output: list[Json] = []
        self._parser = parser
        self._tools = tools
        self._input: FreeformInput | None = None  # of a custom tool's call
        self._number: int | None = None  # of the call that is coming, as `AnswerDelta` has it
        self._texts: list[str] = []

    def push(self, answered: GenerationChunk | GenerationResult) -> Iterator[Event]:
        """A further piece of the answer, or the whole of it."""
        for delta in self._parser.push(answered):
            if delta.call != self._number:
                yield from self._end("completed")
                yield from self._begin(delta)
            yield from self._tell(delta.text if self._input is None else self._input.push(delta.text))

    def end(self, status: str) -> Iterator[Event]:
        """The answer has ended. status: of the last item. An answer that says nothing is a text of no characters."""
        if not self.output:
            yield from self._begin(AnswerDelta(""))
        yield from self._end("incomplete" if self._parser.is_inside_call else status)

    def _tell(self, text: str) -> Iterator[Event]:
        if text:
            self._texts.append(text)
            yield f"{self._kind}.delta", self._place | {"delta": text} | self._logprobs

    @property
    def _kind(self) -> str:
        """The kind of the events that tell the item's text."""
        of_call = "function_call_arguments" if self._input is None else "custom_tool_call_input"
        return _KINDS.get(self._number or 0, of_call)

    @property
    def _logprobs(self) -> Json:
        return {"logprobs": []} if self._kind == "output_text" else {}

    @property
    def _place(self) -> Json:
        item = self.output[-1]
        place: Json = {"output_index": len(self.output) - 1, "item_id": item["id"]}
        return place | ({"content_index": 0} if self._number in _KINDS else {})

    def _begin(self, delta: AnswerDelta) -> Iterator[Event]:
        self._number, self._texts, self._input = delta.call, [], None
        made = {_TEXT: _message, THOUGHT: _reasoning}
        self.output.append(made[delta.call]() if delta.call in made else self._call(delta.name or ""))
        yield "output_item.added", {"output_index": len(self.output) - 1, "item": dict(self.output[-1])}
        if delta.call in made:
            yield "content_part.added", self._place | {"part": self._part("")}

    def _end(self, status: str) -> Iterator[Event]:
        if self._number is None:
            return
        if self._input is not None:
            yield from self._tell(self._input.end())
        item, text = self.output[-1], "".join(self._texts)
        if self._number in _KINDS:
            part = self._part(text)
            item |= {"content": [part]}
            yield f"{self._kind}.done", self._place | {"text": text} | self._logprobs
            yield "content_part.done", self._place | {"part": part}
        elif self._input is not None:
            item |= {INPUT: text}
            yield f"{self._kind}.done", self._place | {INPUT: text}
        else:
            item |= {"arguments": text}
            yield f"{self._kind}.done", self._place | {"name": item["name"], "arguments": text}
        item |= {"status": status}
        yield "output_item.done", {"output_index": len(self.output) - 1, "item": item}
        self._number = None

    def _call(self, name: str) -> Json:
        tool = self._tools.get(name)
        ids: Json = {"call_id": new_call_id(), "name": name if tool is None else tool.tool.name}
        ids |= {"namespace": tool.namespace} if tool is not None and tool.namespace else {}
        if tool is not None and tool.is_custom:
            self._input = FreeformInput()
            kind: Json = {"id": f"ctc_{secrets.token_hex(24)}", "type": "custom_tool_call", INPUT: ""}
        else:
            kind = {"id": f"fc_{secrets.token_hex(24)}", "type": "function_call", "arguments": ""}
        return kind | ids | {"status": "in_progress"}

    def _part(self, text: str) -> Json:
        more: Json = {"annotations": [], "logprobs": []} if self._kind == "output_text" else {}
        return {"type": self._kind, "text": text, **more}


def _message() -> Json:
    name = f"msg_{secrets.token_hex(24)}"
    return {"id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def _reasoning() -> Json:
    name = f"rs_{secrets.token_hex(24)}"
    return {"id": name, "type": "reasoning", "summary": [], "status": "in_progress", "content": []}
