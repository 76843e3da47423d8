"""What a tool's JSON schema allows next in a call: names, keys, separators, enum values, to draft from (ToolSpec).

ToolSpec's schema states (start, first parameter, further parameters) and its past calls of the same tool, for nested
schemas as well. Declarations come from strangers: only the first of many tools, keys and choices count.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeGuard

from reader_edge_runtime.text.conversation import Tool
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.json_cursor import Container, CursorPlace, JsonCursor

Schema = Mapping[str, Any]
Values = Mapping[str, Sequence[str]]  # raw ones by argument, the last first
# A text that may come next, and how likely it is.
Continuation = tuple[str, float]

MAX_TOOLS = 128
MAX_CHOICES = 16
_MAX_KEYS = 64
_MAX_CHARACTERS = 200  # of a name, key or value
_MAX_REFERENCES = 4  # in a row
_BIG = 10**18  # numbers beyond are not written out
_SURE, _LIKELY, _MAYBE, _END = 0.97, 0.7, 0.4, 0.2
_NOTHING: Schema = {}
_LITERALS = {"boolean": ("true", "false"), "null": ("null",)}
_OPENINGS = {"string": '"', "object": "{", "array": "["}


class CallSchema:
    """tools: as they were declared, whatever that is. syntax: how the model writes a call."""

    def __init__(self, tools: Sequence[Tool], syntax: CallSyntax) -> None:
        functions = [_mapping(_mapping(tool).get("function")) for tool in tools[:MAX_TOOLS]]
        self._parameters = {
            name: _mapping(function.get("parameters"))
            for function in functions
            if _is_text(name := function.get("name"))
        }
        self._name, self._arguments = syntax.name, syntax.arguments
        self._root = {syntax.name: {"enum": list(self._parameters)}, syntax.arguments: _NOTHING}

    @property
    def names(self) -> list[str]:
        """The names of the declared tools."""
        return list(self._parameters)

    def tool(self, cursor: JsonCursor) -> str:
        """The declared tool that is called; "" for none so far."""
        name = cursor.scalars.get((self._name,), "")[1:-1]
        return name if name in self._parameters else ""

    def arguments(self, cursor: JsonCursor) -> dict[str, str]:
        """Values of a call's own arguments so far, in raw JSON: strings, numbers and literals."""
        values = ((path, value) for path, value in cursor.scalars.items() if path[:-1] == (self._arguments,))
        return {path[1]: value for path, value in values if len(value) <= _MAX_CHARACTERS}

    def continuations(self, cursor: JsonCursor, past: Values) -> list[Continuation]:
        """What may come next, without what of it is there. past: values that the tool's arguments had."""
        inner = cursor.containers[-1] if cursor.containers else None
        match cursor.place:
            case CursorPlace.VALUE:
                separator, empty = (":", []) if inner is None or inner.is_object else (",", [("]", 1 - _LIKELY)])
                values = [*self._values(cursor, past), *(empty if cursor.gap is None else [])]
                return self._behind_gap(cursor, separator, values)
            case CursorPlace.STRING | CursorPlace.SCALAR:
                return self._rest(cursor, self._values(cursor, past))
            case CursorPlace.KEY:
                assert inner is not None
                return self._behind_gap(cursor, ",", self._keys(cursor, inner))
            case CursorPlace.IN_KEY:
                assert inner is not None
                begun = '"' + cursor.begun
                return [(text[len(begun) :], p) for text, p in self._keys(cursor, inner) if text.startswith(begun)]
            case CursorPlace.COLON:
                return [(":" + cursor.gaps[":"], _SURE)]
            case CursorPlace.AFTER:
                assert inner is not None
                return self._after(cursor, inner)
        return []

    def _rest(self, cursor: JsonCursor, values: list[Continuation]) -> list[Continuation]:
        """Of a string, number or literal that has begun: how known values go on, else its end."""
        is_string = cursor.place is CursorPlace.STRING
        begun = '"' + cursor.begun if is_string else cursor.begun
        rests = [(text[len(begun) :], p) for text, p in values if text.startswith(begun) and len(text) > len(begun)]
        if rests or not cursor.begun:
            return rests
        return (
            [('"', _END)] if is_string else [(text, p * _END) for text, p in self._after(cursor, cursor.containers[-1])]
        )

    def _behind_gap(self, cursor: JsonCursor, separator: str, texts: list[Continuation]) -> list[Continuation]:
        """The usual space first, where a separator was written and it is not all there yet."""
        gap = cursor.gap
        usual = cursor.gaps[separator]
        rest = usual[len(gap) :] if gap is not None and usual.startswith(gap) else ""
        return [(rest + text, p) for text, p in texts]

    def _values(self, cursor: JsonCursor, past: Values) -> list[Continuation]:
        """Of the value that is due: past and listed ones in raw JSON, else how its type begins."""
        path = cursor.path
        schema = self._schema(cursor, path)
        known = past.get(path[1], ()) if len(path) == 2 and path[0] == self._arguments else ()
        texts = [(text, _MAYBE / (1 + number)) for number, text in enumerate(islice(known, MAX_CHOICES))]
        listed = [text for text in _listed(schema) if text not in known]
        texts += [(text, _SURE / len(listed)) for text in listed]
        is_object = path in ((), (self._arguments,)) or "properties" in schema
        opening = "{" if is_object else _OPENINGS.get(_kind(schema), "")
        return [*texts, (opening, _LIKELY)] if opening and not listed else texts

    def _keys(self, cursor: JsonCursor, inner: Container) -> list[Continuation]:
        """Of the object that is open: keys that are left in order, and its end where it may come."""
        schema = self._schema(cursor, cursor.path[:-1])
        left = _left(schema, inner)
        may_end = not inner.keys and not any(key in _required(schema) for key in left)
        ends = [("}", _SURE if not left else 1 - _LIKELY)] if may_end else []
        shares = [_SURE if number == 0 and not may_end else _LIKELY / (1 + number) ** 2 for number in range(len(left))]
        return [
            (json.dumps(key, ensure_ascii=False) + ":", p) for key, p in zip(left[:MAX_CHOICES], shares, strict=False)
        ] + ends

    def _after(self, cursor: JsonCursor, inner: Container) -> list[Continuation]:
        if not inner.is_object:
            return [("]", _LIKELY), ("," + cursor.gaps[","], 1 - _LIKELY)]
        schema = self._schema(cursor, cursor.path[:-1])
        left = _left(schema, inner)
        if not left:
            return [("}", _SURE)]
        is_due = any(key in _required(schema) for key in left)
        further = ("," + cursor.gaps[","], _SURE if is_due else _LIKELY)
        return [further] if is_due else [further, ("}", 1 - _LIKELY)]

    def _schema(self, cursor: JsonCursor, path: Sequence[str]) -> Schema:
        """Of the value at a path; {} for one of which nothing is known."""
        if not path:
            return {"properties": self._root, "required": list(self._root)}
        declared = self._parameters.get(self.tool(cursor), _NOTHING)
        schema: Schema = declared if path[0] == self._arguments else _mapping(self._root.get(path[0]))
        for key in path[1:]:
            schema = _resolved(schema, declared)
            schema = _mapping(schema.get("items") if key == "" else _mapping(schema.get("properties")).get(key))
        return _resolved(schema, declared)


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else _NOTHING


def _resolved(schema: Schema, declared: Schema) -> Schema:
    """Behind references to definitions, and with the first choice of several."""
    for _ in range(_MAX_REFERENCES):
        reference, choices = schema.get("$ref"), schema.get("anyOf")
        if isinstance(reference, str) and len(reference) <= _MAX_CHARACTERS:
            _, _, rest = reference.partition("#/")
            target: object = declared
            for part in islice(rest.split("/"), 8):
                target = _mapping(target).get(part)
            schema = _mapping(target)
        elif isinstance(choices, list) and choices:
            schema = _mapping(choices[0])
        else:
            break
    return schema


def _required(schema: Schema) -> list[Any]:
    required = schema.get("required")
    return required[:_MAX_KEYS] if isinstance(required, list) else []


def _left(schema: Schema, inner: Container) -> list[str]:
    """Keys that an object does not have yet, in the order of their declaration."""
    known = islice(_mapping(schema.get("properties")), _MAX_KEYS)
    return [key for key in known if _is_text(key) and key not in inner.keys]


def _listed(schema: Schema) -> list[str]:
    """The values that a schema lists, in raw JSON."""
    if "const" in schema:
        values: Iterator[object] = iter([schema["const"]])
    else:
        listed = schema.get("enum")
        values = islice(listed, _MAX_KEYS) if isinstance(listed, list) else iter(())
    texts = [json.dumps(value, ensure_ascii=False) for value in values if _is_short(value)]
    return texts or list(_LITERALS.get(_kind(schema), ()))


def _kind(schema: Schema) -> str:
    """Its type, the first of several."""
    kind = schema.get("type")
    return str(kind[0] if isinstance(kind, list) and kind else kind)


def _is_short(value: object) -> bool:
    if isinstance(value, int):  # booleans are
        return abs(value) < _BIG
    return value is None or isinstance(value, float) or _is_text(value)


def _is_text(value: object) -> TypeGuard[str]:
    """Whether this is a text of a name's length that can be encoded."""
    return (
        isinstance(value, str) and len(value) <= _MAX_CHARACTERS and not any("\ud800" <= c <= "\udfff" for c in value)
    )
