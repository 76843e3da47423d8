"""Schemas of which what cannot be followed is left out: the patterns in them.

Keywords that llguidance does not know it leaves out by itself where a schema says `"x-guidance": {"lenient": true}`;
a pattern that it cannot read (with look-around, for example) it refuses all the same.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from reader_edge_runtime.config import Grammar

_IN_LARK = re.compile(r"%json\s*")
_VALUES = frozenset({"const", "default", "enum", "examples"})  # what lies below them is no schema

Schema = dict[str, Any]


def lenient_patterns(grammar: Grammar) -> list[str]:
    """The patterns of texts and keys in a grammar's lenient schemas, at every depth."""
    return _found(grammar, lambda schema: [schema.get("pattern"), *_mapping(schema.get("patternProperties"))])


def key_patterns(grammar: Grammar) -> list[str]:
    """Those of keys alone."""
    return _found(grammar, lambda schema: list(_mapping(schema.get("patternProperties"))))


def _found(grammar: Grammar, patterns: Callable[[Schema], list[Any]]) -> list[str]:
    found: dict[str, None] = {}

    def note(schema: Schema) -> Schema:
        found.update({pattern: None for pattern in patterns(schema) if isinstance(pattern, str)})
        return schema

    _changed(grammar, note)
    return list(found)


def without_patterns(grammar: Grammar, patterns: Collection[str]) -> Grammar:
    """The grammar with these patterns left out of its lenient schemas, which then allow more than before."""

    def leave_out(schema: Schema) -> Schema:
        if isinstance(schema.get("pattern"), str) and schema["pattern"] in patterns:
            schema = {name: value for name, value in schema.items() if name != "pattern"}
        keys = _mapping(schema.get("patternProperties"))
        if not keys.keys() & set(patterns):
            return schema
        left = {pattern: value for pattern, value in keys.items() if pattern not in patterns}
        others = {"additionalProperties", "unevaluatedProperties"}  # they rule what no pattern names
        schema = {name: value for name, value in schema.items() if name not in others}
        return schema | {"patternProperties": left}

    return _changed(grammar, leave_out)


def _changed(grammar: Grammar, change: Callable[[Schema], Schema]) -> Grammar:
    """The grammar with every part of its lenient schemas changed."""
    if grammar.kind == "json_schema":
        return replace(grammar, text=_changed_text(grammar.text, change))
    if grammar.kind != "lark":
        return grammar
    text, place = "", 0
    while (found := _IN_LARK.search(grammar.text, place)) is not None:
        end = _json_end(grammar.text, found.end())
        text += grammar.text[place : found.end()] + _changed_text(grammar.text[found.end() : end], change)
        place = end
    return replace(grammar, text=text + grammar.text[place:])


def _changed_text(text: str, change: Callable[[Schema], Schema]) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    if not isinstance(options, dict) or options.get("lenient") is not True:
        return text
    return json.dumps(_walked(schema, change))


def _json_end(text: str, start: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return start


def _walked(part: Any, change: Callable[[Schema], Schema]) -> Any:
    if isinstance(part, list):
        return [_walked(each, change) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: value if name in _VALUES and not isinstance(value, dict) else _walked(value, change)
        for name, value in change(part).items()
    }


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
