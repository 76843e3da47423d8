"""Calls of tools in an answer's text, found while it comes."""

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

from reader_edge.server.json_body import finite
from reader_edge.server.tools import ToolUse
from reader_edge_runtime.text.call_form import CALL_BEGIN, CALL_END, CallForm

_BEGIN, _END = CALL_BEGIN.strip(), CALL_END.strip()
_HALVES = re.compile("[\ud800-\udfff]")
_PREFIXES = ("[TOOL_CALLS]", "<|python_tag|>")  # of calls without tags, where they are texts


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
        head = {} if self.name is None else {"id": f"call_{secrets.token_hex(12)}", "type": "function"}
        return {"index": self.call, **head, "function": function}


class CallReader:
    """Reads one answer. num_calls: found so far.

    A call that a grammar holds comes in pieces, as they are said. Others come whole, once they are known to be calls of
    declared tools: objects, or lists of them, between tags anywhere, or without tags as the whole answer. Whatever
    else looks like a call, or was cut before its end, is a text.
    """

    def __init__(self, use: ToolUse, form: CallForm) -> None:
        self.num_calls = 0
        self._use = use
        self._form = form
        self._held = ""
        self._is_behind_call = False
        self._num_searched = 0  # characters behind a tag whose ends of calls were amid a string
        held = () if form.begin else ("{",)
        self._untagged = held if use.is_strict else ("{", "[", *_PREFIXES)
        self._read = self._followed if use.is_required else self._unknown

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
        may_be_prefix = any(prefix.startswith(start) for prefix in (*_PREFIXES, _BEGIN))
        if start.startswith(self._untagged):
            self._read = self._bare
        elif is_last or not may_be_prefix:
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
        begin = self._held.find(_BEGIN)
        if begin >= 0:
            yield self._words(begin)
            self._read = self._tagged
        else:
            yield self._words(len(self._held) - (0 if is_last else _overlap(self._held, _BEGIN)))

    def _words(self, num_characters: int) -> Said:
        """So many characters; spaces behind a call are none of the text."""
        text, self._held = self._held[:num_characters], self._held[num_characters:]
        if self._is_behind_call:
            text = text.lstrip()
            self._is_behind_call = not text
        return Said(text)

    def _tagged(self, is_last: bool) -> Iterator[Said]:
        """From a tag to the end of its call."""
        inner = self._held.removeprefix(_BEGIN)
        end = inner.find(_END, self._num_searched)
        while end >= 0:
            calls = self._calls(inner[:end])
            if calls or not _is_open(inner[:end]):
                yield from calls or [Said(_BEGIN + inner[: end + len(_END)])]
                self._is_behind_call = bool(calls)
                self._held, self._read, self._num_searched = inner[end + len(_END) :], self._text, 0
                return
            self._num_searched = end + 1
            end = inner.find(_END, self._num_searched)
        if is_last:
            yield from self._calls(inner) or [Said(self._held)]
            self._held = ""

    def _calls(self, text: str) -> list[Said]:
        """What a text of JSON calls; nothing unless it is that and no more."""
        try:
            value = json.loads(text, parse_float=finite, parse_constant=finite)
        except (ValueError, RecursionError):
            return []
        found = []
        for each in value if isinstance(value, list) else [value]:
            arguments = each.get("arguments", each.get("parameters")) if isinstance(each, dict) else None
            if not isinstance(arguments, dict) or each.get("name") not in self._use.names:
                return []
            found.append((each["name"], _json_text(arguments)))
        if len(found) + self.num_calls > 1 and not self._use.is_parallel:
            return []
        first, self.num_calls = self.num_calls, self.num_calls + len(found)
        return [Said(text, first + number, name) for number, (name, text) in enumerate(found)]

    def _followed(self, is_last: bool) -> Iterator[Said]:
        """The head of a call that a grammar holds."""
        head = re.match(rf'\s*{re.escape(self._form.begin)}{{"name": "([^"]*)", "{self._form.arguments}": ', self._held)
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
        end = "}" + self._form.end
        if self._held.startswith(end):
            self._held, self._read = self._held[len(end) :], self._followed
        yield from ()


def _json_text(value: object) -> str:
    """In characters as they are, unless there are halves of some."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not _HALVES.search(text) else json.dumps(value)


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _is_open(text: str) -> bool:
    """Whether JSON breaks off amid a string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        pass
    return False
