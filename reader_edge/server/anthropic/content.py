"""The content blocks of an Anthropic answer, and the stream events that bring them."""

from collections.abc import Iterator
from typing import Any

from reader_edge.server.anthropic.blocks import signature_of
from reader_edge.server.completion import THOUGHT, AnswerParser, Json
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, new_call_id
from reader_edge_runtime.untrusted.untrusted_json import load_finite

_DELTAS = {  # by types of blocks: the type of their deltas, and where these have their text
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


class ContentBlocks:
    """Reads one answer. blocks: those of it that came to their end; a call that was cut is left out.

    hides_thoughts: whether blocks of thoughts have no text.
    """

    def __init__(self, parser: AnswerParser, hides_thoughts: bool) -> None:
        self.blocks: list[Json] = []
        self._parser = parser
        self._hides_thoughts = hides_thoughts
        self._block: dict[str, Any] | None = None  # which is coming
        self._number = 0  # of its call, as `AnswerDelta` has it
        self._index = -1
        self._texts: list[str] = []

    def push(self, answered: GenerationChunk | GenerationResult) -> Iterator[Json]:
        """A further piece of the answer, or the whole of it. One that says nothing is a text of no characters."""
        for delta in self._parser.push(answered):
            if self._block is None or delta.call != self._number:
                yield from self._end()
                yield self._begin(delta)
            if delta.text:
                self._texts.append(delta.text)
                yield from [] if self._is_hidden else [self._delta(delta.text)]
        if answered.finish_reason is not None:
            if self._index < 0:
                yield self._begin(AnswerDelta(""))
            yield from self._end()

    def stop(self, answered: GenerationChunk | GenerationResult) -> Json:
        """Why the answer ended."""
        reason = _REASONS.get(answered.finish_reason or "", "end_turn")
        if reason == "end_turn" and self._parser.num_calls and not self._parser.is_inside_call:
            reason = "tool_use"
        elif reason == "end_turn" and answered.stop_string:
            reason = "stop_sequence"
        return {
            "stop_reason": reason,
            "stop_sequence": answered.stop_string if reason == "stop_sequence" else None,
        }

    @property
    def _is_hidden(self) -> bool:
        """Whether the block that is coming has thoughts that are not shown."""
        return self._hides_thoughts and self._number == THOUGHT

    def _begin(self, delta: AnswerDelta) -> Json:
        if delta.call >= 0:
            self._block = {"type": "tool_use", "id": new_call_id(), "name": delta.name or "", "input": {}}
        elif delta.call == THOUGHT:
            self._block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            self._block = {"type": "text", "text": ""}
        self._number, self._index, self._texts = delta.call, self._index + 1, []
        return self._event("start", content_block=dict(self._block))

    def _delta(self, text: str) -> Json:
        assert self._block is not None
        kind, name = _DELTAS[self._block["type"]]
        return self._event("delta", delta={"type": kind, name: text})

    def _end(self) -> Iterator[Json]:
        block, text = self._block, "".join(self._texts)
        self._block = None
        if block is None:
            return
        match block["type"]:
            case "thinking":
                block["signature"] = signature_of(text if self._is_hidden else "")
                block["thinking"] = "" if self._is_hidden else text
                yield self._event("delta", delta={"type": "signature_delta", "signature": block["signature"]})
            case "text":
                block["text"] = text
        yield self._event("stop")
        if block["type"] == "tool_use":
            try:
                block["input"] = load_finite(text)
            except (ValueError, RecursionError):
                return
        self.blocks.append(block)

    def _event(self, kind: str, **fields: object) -> Json:
        return {"type": f"content_block_{kind}", "index": self._index, **fields}
