"""What a response says, item after item: texts, and calls of functions; and the events that tell it piece by piece."""

import secrets
from collections.abc import Iterator

from reader_edge.server.question import Json
from reader_edge.server.tool_calls import CallReader, Said, new_call_id

Event = tuple[str, Json]


class ResponseItems:
    """Reads one answer. output: its items so far. Events are their kinds, with their fields."""

    def __init__(self, reader: CallReader | None) -> None:
        """reader: what finds calls, where there may be any."""
        self.output: list[Json] = []
        self._reader = reader
        self._number: int | None = None  # of the call that is being said, -1 for a text
        self._texts: list[str] = []

    def push(self, text: str, is_last: bool) -> Iterator[Event]:
        """A further piece of the answer; is_last: and its end."""
        for said in [Said(text)] if self._reader is None else self._reader.push(text, is_last):
            if said.call != self._number and (said.text or said.name is not None):
                yield from self._end("completed")
                yield from self._begin(said)
            if said.text:
                self._texts.append(said.text)
                kind = "output_text.delta" if said.call < 0 else "function_call_arguments.delta"
                yield kind, self._place | {"delta": said.text} | ({"logprobs": []} if said.call < 0 else {})

    def end(self, status: str) -> Iterator[Event]:
        """All is said. status: of the last item. An answer that says nothing is a text of no characters."""
        if not self.output:
            yield from self._begin(Said(""))
        yield from self._end(status)

    @property
    def _place(self) -> Json:
        item = self.output[-1]
        place: Json = {"output_index": len(self.output) - 1, "item_id": item["id"]}
        return place | ({"content_index": 0} if item["type"] == "message" else {})

    def _begin(self, said: Said) -> Iterator[Event]:
        self._number, self._texts = said.call, []
        self.output.append(_message() if said.call < 0 else _call(said.name or ""))
        yield "output_item.added", {"output_index": len(self.output) - 1, "item": dict(self.output[-1])}
        if said.call < 0:
            yield "content_part.added", self._place | {"part": _part("")}

    def _end(self, status: str) -> Iterator[Event]:
        if self._number is None:
            return
        item, text = self.output[-1], "".join(self._texts)
        if self._number < 0:
            item |= {"content": [_part(text)]}
            yield "output_text.done", self._place | {"text": text, "logprobs": []}
            yield "content_part.done", self._place | {"part": _part(text)}
        else:
            item |= {"arguments": text}
            yield "function_call_arguments.done", self._place | {"name": item["name"], "arguments": text}
        item |= {"status": status}
        yield "output_item.done", {"output_index": len(self.output) - 1, "item": item}
        self._number = None


def _message() -> Json:
    name = f"msg_{secrets.token_hex(24)}"
    return {"id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def _call(name: str) -> Json:
    ids: Json = {"id": f"fc_{secrets.token_hex(24)}", "call_id": new_call_id()}
    return ids | {"type": "function_call", "name": name, "arguments": "", "status": "in_progress"}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
