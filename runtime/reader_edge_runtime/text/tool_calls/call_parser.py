"""Finds tool calls in an answer's text while it streams."""

import json
from collections.abc import Iterator, Sequence

from reader_edge_runtime.text.conversation import Tool
from reader_edge_runtime.text.thinking import overlap
from reader_edge_runtime.text.tool_calls.call_body_parser import is_open, read_calls
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.streaming_calls import (
    StreamingCalls,
    call_prefix,
    has_json_arguments,
    json_text,
)
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolCall, ToolUse, new_call_id

_PREFIXES = ("[TOOL_CALLS]", "<|python_tag|>")  # of whole answers that are calls, where a template says nothing of it

_FUNCTION_ENDS = ("</function>", "</invoke>", "</atem:invoke>")


class ToolCallParser:
    """Reads one answer.

    A call with JSON arguments that the answer must be comes in pieces, as generated. Others come whole, once they
    are known to be calls of declared tools: between the tags of the model's syntax anywhere, or as the whole answer.
    Where one call is requested, the first counts and further ones are left out. Whatever else looks like a call is a
    text, and so is one that was cut before its end, unless a grammar holds all calls: then what is there of it counts.
    """

    def __init__(self, use: ToolUse, syntax: CallSyntax, is_formed: bool = False) -> None:
        """is_formed: whether a grammar holds what is no call, too."""
        self._use = use
        self._syntax = syntax
        functions = [tool["function"] for tool in use.tools if tool["function"]["name"] in use.names]
        self._schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        self._is_formed = is_formed
        self._are_calls_held = use.is_required or use.is_strict or is_formed
        self._is_text_free = not (use.is_required or is_formed)
        self._num_calls = 0
        self._buffer = ""
        self._has_text = False
        self._is_behind_call = False
        self._num_searched = 0  # characters behind a tag whose ends of calls were inside a string
        self._tags = syntax.tags_of(self._schemas)
        if use.is_strict:  # others are not held by the grammar
            self._tags = tuple(pair for pair in syntax.tags if syntax.tag and syntax.tag.startswith(pair[0]))
        self._tag, self._end = "", ""  # of the call that is read
        self._closing = syntax.closing.removeprefix("]") or syntax.tags[0][1]  # which may stand behind a call
        held = () if syntax.tag else ("{",)
        unknown = tuple(prefix for prefix in _PREFIXES if prefix not in dict(syntax.tags))
        if syntax.notation is Notation.NAMED and not syntax.tag:
            held = tuple(name + syntax.between for name in self._schemas)
        self._untagged = held if use.is_strict else ("{", "[{", *unknown, *held)
        self._streaming_calls: StreamingCalls | None = None  # which read all that comes
        self._read = self._unknown
        if use.is_required and has_json_arguments(syntax):
            self._follow()

    @property
    def num_calls(self) -> int:
        """Found so far."""
        return self._num_calls if self._streaming_calls is None else self._streaming_calls.num_calls

    @property
    def is_inside_call(self) -> bool:
        """Whether a call was begun whose arguments have not ended."""
        return self._streaming_calls is not None and self._streaming_calls.is_inside_call

    def push(self, text: str, is_last: bool) -> list[AnswerDelta]:
        """What a further piece of text says; is_last: and its end."""
        self._buffer += text
        deltas: list[AnswerDelta] = []
        while True:
            before = self._read, len(self._buffer)
            deltas += self._read(is_last)
            if (self._read, len(self._buffer)) == before:
                return [each for each in deltas if each.text or each.name is not None]

    def _unknown(self, is_last: bool) -> Iterator[AnswerDelta]:
        """At the beginning: is the whole answer a call without tags? No strict one but of a grammar."""
        start = self._buffer.lstrip()
        beginnings = (*self._untagged, *(tag for tag, _ in self._tags))
        if start.startswith(self._untagged):
            self._read = self._bare
        elif is_last or not any(text.startswith(start) for text in beginnings):
            self._read = self._text
        yield from ()

    def _bare(self, is_last: bool) -> Iterator[AnswerDelta]:
        if not is_last:
            return
        start = self._buffer.lstrip()
        if self._are_calls_held and not self._syntax.tag and self._is_call(start):
            self._follow()
            return
        for prefix in _PREFIXES:
            start = start.removeprefix(prefix)
        yield from self._calls(start) or [AnswerDelta(self._buffer)]
        self._buffer = ""

    def _is_call(self, text: str) -> bool:
        """Whether a text without tags begins a call: else it may be the beginning of what the answer must be."""
        return not self._is_formed or any(text.startswith(call_prefix(self._syntax, name)) for name in self._schemas)

    def _text(self, is_last: bool) -> Iterator[AnswerDelta]:
        """Up to the next tag, or to what may become one."""
        if self._is_behind_call:
            self._buffer = self._buffer.lstrip()
            if self._closing.startswith(self._buffer):
                self._buffer = "" if is_last else self._buffer
                return
            self._buffer = self._buffer.removeprefix(self._closing)
        found = [(self._buffer.find(tag), -len(tag), tag, end) for tag, end in self._tags if tag in self._buffer]
        if found:
            begin, _, self._tag, self._end = min(found)
            yield self._words(begin)
            self._read = self._tagged
        else:
            begun = max((overlap(self._buffer, tag) for tag, _ in self._tags), default=0)
            is_whole_text = begun == len(self._buffer.lstrip()) and not self._has_text
            if is_last and begun and is_whole_text and not self._is_text_free:
                self._follow()
                return
            yield self._words(len(self._buffer) - (0 if is_last else begun))

    def _words(self, num_characters: int) -> AnswerDelta:
        """So many characters; spaces behind a call are none of the text."""
        text, self._buffer = self._buffer[:num_characters], self._buffer[num_characters:]
        if self._is_behind_call:
            text = text.lstrip()
            self._is_behind_call = not text
        self._has_text = self._has_text or bool(text.strip())
        return AnswerDelta(text)

    def _tagged(self, is_last: bool) -> Iterator[AnswerDelta]:
        """From a tag to the end of its call."""
        inner = self._buffer.removeprefix(self._tag)
        mark = self._end or self._tag  # without an end the next call's beginning is one
        end = inner.find(mark, self._num_searched)
        while end >= 0:
            calls = self._calls(inner[:end])
            if calls or not is_open(inner[:end], self._syntax, self._schemas):
                end += len(self._end)
                yield from calls or [AnswerDelta(self._tag + inner[:end])]
                self._is_behind_call = bool(calls)
                self._buffer, self._read, self._num_searched = inner[end:], self._text, 0
                return
            self._num_searched = end + 1
            end = inner.find(mark, self._num_searched)
        if is_last:
            # Without its end nothing tells of some calls whether all of their arguments are there.
            is_whole = self._syntax.notation not in (Notation.KEYS, Notation.XML) or any(
                end in inner for end in _FUNCTION_ENDS
            )
            calls = self._calls(inner) if is_whole else []
            if self._are_calls_held and not calls:
                self._follow()
                return
            yield from calls or [AnswerDelta(self._buffer)]
            self._buffer = ""

    def _calls(self, text: str) -> list[AnswerDelta]:
        """What the text between tags calls; nothing unless it is that and no more."""
        found = list(enumerate(read_calls(text, self._syntax, self._schemas), self._num_calls))
        wanted = [each for each in found if self._use.is_parallel or each[0] == 0]
        self._num_calls += len(wanted)
        calls = [AnswerDelta(json_text(arguments), number, name) for number, (name, arguments) in wanted]
        return calls if calls or not found else [AnswerDelta("")]  # further ones than are requested are left out

    def _follow(self) -> None:
        """Take all that is left for calls that a grammar holds."""
        self._streaming_calls = StreamingCalls(self._schemas, self._syntax, self._num_calls)
        self._read = self._followed

    def _followed(self, is_last: bool) -> Iterator[AnswerDelta]:
        assert self._streaming_calls is not None
        text, self._buffer = self._buffer, ""
        yield from self._streaming_calls.push(text, is_last)


def called_tools(text: str, tools: Sequence[Tool], syntax: CallSyntax) -> tuple[str, tuple[ToolCall, ...]]:
    """What a whole answer says beside its calls of these tools, and the calls."""
    declared = tuple(dict(tool) for tool in tools)
    use = ToolUse(declared, tuple(tool["function"]["name"] for tool in declared))
    deltas = ToolCallParser(use, syntax).push(text, is_last=True)
    calls = [
        ToolCall(each.name, json.loads(each.text), new_call_id()) for each in deltas if each.call >= 0 and each.name
    ]
    return "".join(each.text for each in deltas if each.call < 0), tuple(calls)
