"""Predicts how a tool call goes on, from the declared tools and past calls of them, to draft its tokens."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.text_stream import StreamDecoder
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.call_schema import CallSchema, Continuation, Values
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.json_cursor import CursorPlace, JsonCursor

# A call: the tool's name, and the values of its arguments that are no arrays or objects, in raw JSON.
Call = tuple[str, dict[str, str]]

MAX_CALLS = 64
_MAX_AHEAD = 160  # characters that are predicted
_MAX_TAIL = 64
_MAX_PATHS = 8
_WORD_AT_END = re.compile(r"\w+\Z")
_SURE, _FIRST, _ANOTHER, _FOLLOWED = 0.97, 0.4, 0.3, 0.5  # how likely; the last: what is followed further


class CallReader:
    """Reads on piece by piece. calls: those that ended, MAX_CALLS at most."""

    def __init__(self, schema: CallSchema, syntax: CallSyntax) -> None:
        self.calls: list[Call] = []
        self._schema, self._syntax = schema, syntax
        self._begin = syntax.begin + "{"
        opening = re.escape(syntax.begin.strip()) + r"\s*(?=\{)"
        self._opening = re.compile(opening if syntax.begin else r"\A\s*(?=\{)")
        self._cursor: JsonCursor | None = None
        self._due, self._due_p = self._begin, _FIRST
        self._tail = ""  # the text since the beginning, or since the last call

    def read(self, text: str) -> None:
        """The answer went on."""
        while text:
            if self._cursor is None:
                text = self._look_for_call(text)
            if self._cursor is not None:
                text = self._cursor.feed(text)
                if self._cursor.place in (CursorPlace.DONE, CursorPlace.LOST):
                    self._end_call(self._cursor)

    def continuations(self, past: Mapping[str, Values]) -> list[Continuation]:
        """What may come next, as far as it then goes on surely; nothing where nothing is known.

        past: values that arguments had, by tool.
        """
        likeliest = sorted(self._next(past), key=lambda each: -each[1])[:_MAX_PATHS]
        return [(self._copy()._followed(text, past), p) for text, p in likeliest]

    def _followed(self, ahead: str, past: Mapping[str, Values]) -> str:
        """A text, and what surely comes behind it."""
        further = ahead
        while further and len(ahead) < _MAX_AHEAD:
            self.read(further)
            texts = self._next(past)
            further, p = max(texts, key=lambda each: each[1], default=("", 0.0))
            if p < _FOLLOWED:
                shared = _beginning([text for text, _ in texts]) if sum(p for _, p in texts) >= _FOLLOWED else ""
                return ahead + _WORD_AT_END.sub("", shared)  # no half words, which are other tokens
            ahead += further
        return ahead

    def _copy(self) -> "CallReader":
        other = CallReader(self._schema, self._syntax)
        other._cursor = None if self._cursor is None else self._cursor.copy()
        other._due, other._due_p, other._tail = self._due, self._due_p, self._tail
        return other

    def _next(self, past: Mapping[str, Values]) -> list[Continuation]:
        """The next part of a call, or of what stands around it."""
        if self._cursor is not None:
            return self._schema.continuations(self._cursor, past.get(self._schema.tool(self._cursor), {}))
        if self._due.startswith(self._tail) and self._due != self._tail:
            return [(self._due[len(self._tail) :], _SURE if self._tail else self._due_p)]
        if not self._syntax.begin:
            return []
        lengths = range(min(len(self._syntax.begin), len(self._tail)), 0, -1)
        begun = next((n for n in lengths if self._tail.endswith(self._begin[:n])), 0)
        if begun:
            return [(self._begin[begun:], _SURE)]
        return [("\n" + self._begin, _ANOTHER)] if self._due == self._tail else []

    def _look_for_call(self, text: str) -> str:
        """Read text around calls. Returns what is left of it where a call begins."""
        self._tail += text
        found = self._opening.search(self._tail)
        if found is None:
            if len(self._tail) > _MAX_TAIL:
                self._tail = "." + self._tail[-_MAX_TAIL:]  # no beginning any more
            return ""
        rest = self._tail[found.end() :]
        self._cursor, self._tail = JsonCursor(), ""
        return rest

    def _end_call(self, cursor: JsonCursor) -> None:
        name = self._schema.tool(cursor)
        if cursor.place is CursorPlace.DONE and name and len(self.calls) < MAX_CALLS:
            self.calls.append((name, self._schema.arguments(cursor)))
        self._cursor, self._tail = None, ""
        self._due, self._due_p = self._syntax.end, _SURE


def _beginning(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    return next((first[:n] for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first)


_MAX_ARGUMENTS = 4096  # characters of a call in a message that are read
_BEFORE = 8  # characters before a path that tell how it begins


class CallPredictor:
    """Follows one answer to a conversation that declares tools, and tells what calls allow next.

    calls: those of the conversation and the answer so far: the tool, and values by argument in raw JSON.
    """

    def __init__(self, conversation: Conversation, prompt_token_ids: Sequence[int], tokenizer: Tokenizer) -> None:
        known = tokenizer.call_syntax  # what stands before the first call belongs to it
        syntax = replace(known, begin=known.opening + known.begin, end=known.end or known.closing, opening="")
        schema = CallSchema(conversation.tools, syntax)
        self._reader = CallReader(schema, syntax)
        self._earlier = _earlier_calls(conversation.messages, schema, syntax)
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, prompt_token_ids, tokenizer.special_in(syntax.texts))
        self._num_read = 0
        self._last = ""  # the answer's last characters

    @property
    def calls(self) -> list[Call]:
        return [*self._earlier, *self._reader.calls]

    def paths(self, answer: Sequence[int], past: Mapping[str, Values]) -> list[tuple[list[int], float]]:
        """Tokens that may come next, and how likely each path begins.

        answer: token ids so far. past: values that arguments had, by tool. Raises TokenizerError.
        """
        for token_id in answer[self._num_read :]:
            text = self._decoder.push(token_id)
            self._reader.read(text)
            self._last = (self._last + text)[-_BEFORE:]
        self._num_read = len(answer)
        likeliest = [] if self._decoder.is_holding else self._reader.continuations(past)
        if not likeliest:
            return []
        before, *encoded = self._tokenizer.encode_batch([self._last, *(self._last + text for text, _ in likeliest)])
        return [(self._behind(before, ids, text), p) for ids, (text, p) in zip(encoded, likeliest, strict=True)]

    def _behind(self, before: list[int], token_ids: list[int], text: str) -> list[int]:
        """The tokens of a text behind the answer, whose last token has ended, whatever the two would be as one."""
        if token_ids[: len(before)] == before:
            return token_ids[len(before) :]
        return self._tokenizer.encode(text, adds_special_tokens=False)


def _earlier_calls(messages: Sequence[Message], schema: CallSchema, syntax: CallSyntax) -> list[Call]:
    """Of declared tools in messages of the assistant; the last of many."""
    functions = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    reader = CallReader(schema, CallSyntax("", "", syntax.arguments, syntax.name))
    for function in functions[-MAX_CALLS:]:
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if len(text) <= _MAX_ARGUMENTS:
            reader.read(
                json.dumps({syntax.name: function["name"], syntax.arguments: None})[: -len("null}")] + text + "}"
            )
    return reader.calls
