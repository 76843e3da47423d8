"""Tool calls of a grammar-constrained answer, read while they stream. Of one that is cut, what was read is reported."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reader_edge_runtime.text.tool_calls.call_body_parser import read_calls
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta

_HALVES = re.compile("[\ud800-\udfff]")
_NAME = "[a-zA-Z0-9_.-]+"


class StreamingCalls:
    """Reads calls and nothing else. num_calls: found so far.

    JSON arguments come as they are generated. Arguments in another notation are not read here unless they are cut: then
    those that are whole come as the beginning of an object. A call that is cut before its arguments has none, and is
    reported where the tools leave no doubt which of them it calls.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], syntax: CallSyntax, num_calls: int = 0) -> None:
        """schemas: of the parameters of each tool that may be called."""
        self.num_calls = num_calls
        self._schemas = schemas
        self._syntax = syntax
        self._buffer = ""
        self._depth, self._is_string = 0, False
        around = "|".join(re.escape(text) for text in (syntax.opening, syntax.joint) if text)
        inner = f"({_NAME})".join(re.escape(part) for part in call_prefix(syntax, "\0").split("\0"))
        self._prefix_pattern = re.compile(rf"\s*(?:{around})?\s*{inner}")
        self._read = self._read_prefix if has_json_arguments(syntax) else self._cut

    @property
    def is_inside_call(self) -> bool:
        """Whether a call was begun whose arguments have not ended."""
        return self._read == self._arguments

    def push(self, text: str, is_last: bool) -> list[AnswerDelta]:
        """What a further piece of text says; is_last: and its end."""
        self._buffer += text
        deltas: list[AnswerDelta] = []
        while True:
            before = self._read, len(self._buffer)
            deltas += self._read(is_last)
            if (self._read, len(self._buffer)) == before:
                return deltas

    def _read_prefix(self, is_last: bool) -> Iterator[AnswerDelta]:
        """Up to a call's arguments."""
        prefix = self._prefix_pattern.match(self._buffer)
        if prefix is None:
            yield from self._cut(is_last)
            return
        self._buffer = self._buffer[prefix.end() :]
        yield self._begun(prefix[1])

    def _cut(self, is_last: bool) -> Iterator[AnswerDelta]:
        """A call that breaks off here."""
        if not is_last:
            return
        end = self._syntax.parameter[-1].strip() if self._syntax.notation in (Notation.XML, Notation.KEYS) else ""
        whole, found, _ = self._buffer.rpartition(end) if end else ("", "", "")
        calls = read_calls((whole + found).lstrip(), self._syntax, self._schemas) if found else []
        called = self._called()
        self._buffer = ""
        if calls:
            name, arguments = calls[0]
            yield self._begun(name, json_text(arguments).removesuffix("}"))
        elif called is not None:
            yield self._begun(called)

    def _begun(self, name: str, arguments: str = "") -> AnswerDelta:
        self.num_calls += 1
        self._depth, self._is_string = 0, False
        self._read = self._arguments
        return AnswerDelta(arguments, self.num_calls - 1, name)

    def _called(self) -> str | None:
        """The one tool that a call can be of which was begun; None where there may be several, or no call was begun."""
        syntax, text = self._syntax, self._buffer.lstrip()
        if not text or (self.num_calls and syntax.closing.lstrip().startswith(text)):
            return None
        before = call_prefix(syntax, "\0").partition("\0")[0]
        for lead in (syntax.opening + before, (syntax.joint or "") + before, before):
            lead = lead.lstrip()
            if lead.startswith(text):
                return self._only("", is_whole=False)
            if text.startswith(lead):
                name = re.match(_NAME, text[len(lead) :])
                begun = "" if name is None else name[0]
                return self._only(begun, is_whole=len(lead) + len(begun) < len(text))
        return None

    def _only(self, begun: str, is_whole: bool) -> str | None:
        """The one tool whose name begins so, or is this."""
        names = [name for name in self._schemas if (name == begun if is_whole else name.startswith(begun))]
        return names[0] if len(names) == 1 else None

    def _arguments(self, is_last: bool) -> Iterator[AnswerDelta]:
        """A call's arguments, up to the brace that ends them."""
        place = 0
        for token in re.finditer(r'\\.|["{}]', self._buffer, re.DOTALL):
            mark, place = token[0], token.end()
            if mark == '"':
                self._is_string = not self._is_string
            elif not self._is_string and mark in "{}":
                self._depth += 1 if mark == "{" else -1
                if self._depth == 0:
                    yield AnswerDelta(self._buffer[:place], self.num_calls - 1)
                    self._buffer, self._read = self._buffer[place:], self._rest
                    return
        is_inside_escape = re.search(r"(?<!\\)(\\\\)*\\$", self._buffer) is not None
        place = len(self._buffer) - (1 if is_inside_escape else 0)
        yield AnswerDelta(self._buffer[:place], self.num_calls - 1)
        self._buffer = self._buffer[place:]

    def _rest(self, is_last: bool) -> Iterator[AnswerDelta]:
        """From a call's arguments to the end of the call."""
        end = call_suffix(self._syntax)
        if self._buffer.startswith(end):
            self._buffer, self._read = self._buffer[len(end) :], self._read_prefix
        yield from ()


def has_json_arguments(syntax: CallSyntax) -> bool:
    """Whether arguments are written as a JSON object, which can be reported as it comes."""
    return syntax.notation in (Notation.OBJECT, Notation.KEYED, Notation.NAMED)


def call_prefix(syntax: CallSyntax, name: str) -> str:
    """What stands before a call's arguments where a grammar holds it."""
    if syntax.notation is Notation.OBJECT:
        return f'{syntax.begin}{{"{syntax.name}": "{name}", "{syntax.arguments}": '
    if syntax.notation is Notation.KEYED:
        return f'{syntax.begin}{{"{name}": '
    return syntax.begin + name + syntax.between


def call_suffix(syntax: CallSyntax) -> str:
    """What stands behind them."""
    return "}" + syntax.end if syntax.notation in (Notation.OBJECT, Notation.KEYED) else syntax.end


def json_text(value: object) -> str:
    """In characters as they are, unless there are halves of some."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not _HALVES.search(text) else json.dumps(value)
