"""Grammars that allow nothing, or never end, are refused as such before anything is decoded."""

import json
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

from reader_edge_runtime import Engine, GenerationConfig, Grammar
from reader_edge_runtime.decoding.choosing.grammar_worker.lark_ends import can_end
from reader_edge_runtime.errors import ConfigError
from tests.runtime.decoding.choosing.followed import follow, takes

LENIENT = {"x-guidance": {"lenient": True}}
LOOP = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        },
        LOOP,
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"type": "object", "properties": {"text": {"type": "string"}, "more": LOOP}, "required": ["text", "more"]},
        {"anyOf": []},
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {
            "type": "object",
            "properties": {"ab": {"type": "integer"}},
            "required": ["ab"],
            "patternProperties": {"^a": {"type": "string"}},
        },
        {
            "type": "object",
            "properties": {"ab": {"type": "string", "pattern": "^x"}},
            "required": ["ab"],
            "patternProperties": {"^a": {"pattern": "^y"}},
        },
    ],
)
def test_a_schema_that_allows_nothing_is_refused_as_such_at_once(engine: Engine, schema: dict[str, Any]) -> None:
    for each in (schema, schema | LENIENT):
        with pytest.raises(
            ConfigError, match=r"cannot be followed \(it allows nothing[^\n]*\): change or simplify it\."
        ):
            engine.answer("# tar", GenerationConfig(grammar=Grammar("json_schema", json.dumps(each))))


def test_a_part_that_never_ends_is_never_begun() -> None:
    schema = {"type": "object", "properties": {"more": LOOP | {"properties": {"next": {"$ref": "#/properties/more"}}}}}
    assert takes(schema, "{}")
    assert not takes(schema, '{"more":')
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]}
    assert takes(tree, '{"kids":[{"kids":[]}]}')


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ('start: "a" start', False),
        ('start: "a" b\nb: "c" b | "d" b', False),
        ("start: (a | b)\na: a\nb: (b b)+ // ends never", False),
        ('start: a{2}\na: /x/ a\n | "y" a', False),
        ('start: "a" | start "b"', True),
        ('start: a?\na: "x" a', True),
        ('start: ("x" a)*\na: "x" a', True),
        ('start: [a] "z"\na: a', True),
        ('start: a{0,2} "z"\na: a', True),
        ('start: a b\na[suffix="x"]: /x/\nb: a\n | b "c"', True),
        ("%llguidance {}\nstart: start", True),  # directives are not read
    ],
)
def test_rules_that_never_end_are_found(text: str, ends: bool) -> None:
    assert can_end(text) is ends
    if not ends:
        with pytest.raises(ValueError, match="no text that follows it ever ends"):
            follow(text, "lark")


def test_a_grammar_with_no_way_on_says_so(engine: Engine) -> None:
    for text, words in (("start: X", "it allows nothing"), ('start: "x" X', "it allows nothing that could come next")):
        grammar = Grammar("lark", f"{text}\nX: /a/ & /b/")
        with pytest.raises(ConfigError, match=rf"cannot be followed \({words}\)"):
            engine.generate("# tar", GenerationConfig(grammar=grammar))
