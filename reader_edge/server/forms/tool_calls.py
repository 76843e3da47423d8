"""Calls of tools in an answer's text, found while it comes."""

import json
import re
import secrets
import string
from collections.abc import Iterator
from typing import Any, NamedTuple

from reader_edge.server.forms.tools import ToolUse
from reader_edge_runtime.text.call_form import CallForm, Notation
from reader_edge_runtime.text.call_notation import is_open, read_calls

_HALVES = re.compile("[\ud800-\udfff]")
_PREFIXES = ("[TOOL_CALLS]", "<|python_tag|>")  # of whole answers that are calls, where a template says nothing of it
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # which Mistral's templates insist on


def new_call_id() -> str:
    """An id that the template of every model takes."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


class Said(NamedTuple):
    """A piece of an answer: a text, or a part of a call.

    call: its number, -1 for a text. name: at a call's beginning. text: the piece of a text, or of a call's arguments.
    """

    text: str
    call: int = -1
    name: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """A call's part in OpenAI's words."""
        function = {"arguments": self.text} if self.name is None else {"name": self.name, "arguments": self.text}
        head = {} if self.name is None else {"id": new_call_id(), "type": "function"}
        return {"index": self.call, **head, "function": function}


class CallReader:
    """Reads one answer. num_calls: found so far.

    A call with JSON arguments that a grammar holds comes in pieces, as they are said. Others come whole, once they are
    known to be calls of declared tools: between the tags of the model's form anywhere, or as the whole answer. Where
    one call is asked for, the first counts and further ones are left out. Whatever else looks like a call, or was cut
    before its end, is a text.
    """

    def __init__(self, use: ToolUse, form: CallForm) -> None:
        self.num_calls = 0
        self._use = use
        self._form = form
        functions = [tool["function"] for tool in use.tools if tool["function"]["name"] in use.names]
        self._schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        self._held = ""
        self._is_behind_call = False
        self._num_searched = 0  # characters behind a tag whose ends of calls were amid a string
        self._tags = form.tags
        if use.is_strict:  # others are not held by the grammar
            self._tags = tuple(pair for pair in form.tags if form.tag and form.tag.startswith(pair[0]))
        self._tag, self._end = "", ""  # of the call that is read
        self._closing = form.closing.removeprefix("]") or form.tags[0][1]  # which may stand behind a call
        held = () if form.tag else ("{",)
        unknown = tuple(prefix for prefix in _PREFIXES if prefix not in dict(form.tags))
        self._untagged = held if use.is_strict else ("{", "[{", *unknown)
        is_in_pieces = use.is_required and form.notation in (Notation.OBJECT, Notation.KEYED, Notation.NAMED)
        self._read = self._followed if is_in_pieces else self._unknown

    @property
    def is_amid_call(self) -> bool:
        """Whether a call was begun whose arguments have not ended."""
        return self._read == self._arguments

    def push(self, text: str, is_last: bool) -> list[Said]:
        """What a further piece of text says; is_last: and its end."""
        self._held += text
        said: list[Said] = []
        while True:
            before = self._read, len(self._held)
            said += self._read(is_last)
            if (self._read, len(self._held)) == before:
                return [each for each in said if each.text or each.name is not None]

    def _unknown(self, is_last: bool) -> Iterator[Said]:
        """Before anything was said: is the whole answer a call without tags? No strict one but of a grammar."""
        start = self._held.lstrip()
        beginnings = (*self._untagged, *(tag for tag, _ in self._tags))
        if start.startswith(self._untagged):
            self._read = self._bare
        elif is_last or not any(text.startswith(start) for text in beginnings):
            self._read = self._text
        yield from ()

    def _bare(self, is_last: bool) -> Iterator[Said]:
        if is_last:
            start = self._held.lstrip()
            for prefix in _PREFIXES:
                start = start.removeprefix(prefix)
            yield from self._calls(start) or [Said(self._held)]
            self._held = ""

    def _text(self, is_last: bool) -> Iterator[Said]:
        """Up to the next tag, or to what may become one."""
        if self._is_behind_call:
            self._held = self._held.lstrip()
            if self._closing and self._closing.startswith(self._held) and not is_last:
                return
            self._held = self._held.removeprefix(self._closing)
        found = [(self._held.find(tag), -len(tag), tag, end) for tag, end in self._tags if tag in self._held]
        if found:
            begin, _, self._tag, self._end = min(found)
            yield self._words(begin)
            self._read = self._tagged
        else:
            begun = max((_overlap(self._held, tag) for tag, _ in self._tags), default=0)
            yield self._words(len(self._held) - (0 if is_last else begun))

    def _words(self, num_characters: int) -> Said:
        """So many characters; spaces behind a call are none of the text."""
        text, self._held = self._held[:num_characters], self._held[num_characters:]
        if self._is_behind_call:
            text = text.lstrip()
            self._is_behind_call = not text
        return Said(text)

    def _tagged(self, is_last: bool) -> Iterator[Said]:
        """From a tag to the end of its call."""
        inner = self._held.removeprefix(self._tag)
        mark = self._end or self._tag  # without an end the next call's beginning is one
        end = inner.find(mark, self._num_searched)
        while end >= 0:
            calls = self._calls(inner[:end])
            if calls or not is_open(inner[:end]):
                end += len(self._end)
                yield from calls or [Said(self._tag + inner[:end])]
                self._is_behind_call = bool(calls)
                self._held, self._read, self._num_searched = inner[end:], self._text, 0
                return
            self._num_searched = end + 1
            end = inner.find(mark, self._num_searched)
        if is_last:
            # Without its end nothing tells of some calls whether all of their arguments were said.
            is_whole = self._form.notation not in (Notation.KEYS, Notation.XML) or "</function>" in inner
            yield from (self._calls(inner) if is_whole else []) or [Said(self._held)]
            self._held = ""

    def _calls(self, text: str) -> list[Said]:
        """What the text between tags calls; nothing unless it is that and no more."""
        found = list(enumerate(read_calls(text, self._form, self._schemas), self.num_calls))
        wanted = [each for each in found if self._use.is_parallel or each[0] == 0]
        self.num_calls += len(wanted)
        calls = [Said(_json_text(arguments), number, name) for number, (name, arguments) in wanted]
        return calls if calls or not found else [Said("")]  # further ones than are asked for are left out

    def _followed(self, is_last: bool) -> Iterator[Said]:
        """The head of a call that a grammar holds."""
        form = self._form
        around = "|".join(re.escape(text) for text in (form.opening, form.joint) if text)
        inner = '([^"]*)'.join(re.escape(part) for part in call_head(form, "\0").split("\0"))
        head = re.match(rf"\s*(?:{around})?\s*{inner}", self._held)
        if head is not None:
            yield Said("", self.num_calls, head[1])
            self._held = self._held[head.end() :]
            self.num_calls += 1
            self._depth, self._is_string = 0, False
            self._read = self._arguments

    def _arguments(self, is_last: bool) -> Iterator[Said]:
        """Its arguments, up to the brace that ends them."""
        place = 0
        for token in re.finditer(r'\\.|["{}]', self._held, re.DOTALL):
            mark, place = token[0], token.end()
            if mark == '"':
                self._is_string = not self._is_string
            elif not self._is_string and mark in "{}":
                self._depth += 1 if mark == "{" else -1
                if self._depth == 0:
                    yield Said(self._held[:place], self.num_calls - 1)
                    self._held, self._read = self._held[place:], self._rest
                    return
        is_amid_escape = re.search(r"(?<!\\)(\\\\)*\\$", self._held) is not None
        place = len(self._held) - (1 if is_amid_escape else 0)
        yield Said(self._held[:place], self.num_calls - 1)
        self._held = self._held[place:]

    def _rest(self, is_last: bool) -> Iterator[Said]:
        """From a call's arguments to the end of the call."""
        end = call_tail(self._form)
        if self._held.startswith(end):
            self._held, self._read = self._held[len(end) :], self._followed
        yield from ()


def call_head(form: CallForm, name: str) -> str:
    """What stands before a call's arguments where a grammar holds it."""
    if form.notation is Notation.OBJECT:
        return f'{form.begin}{{"{form.name}": "{name}", "{form.arguments}": '
    if form.notation is Notation.KEYED:
        return f'{form.begin}{{"{name}": '
    return form.begin + name + form.between


def call_tail(form: CallForm) -> str:
    """What stands behind them."""
    return "}" + form.end if form.notation in (Notation.OBJECT, Notation.KEYED) else form.end


def _json_text(value: object) -> str:
    """In characters as they are, unless there are halves of some."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not _HALVES.search(text) else json.dumps(value)


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
