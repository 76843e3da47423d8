"""Patterns, keys and choices that the grammar library would hold otherwise than the standard says."""

import re
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

from tests.runtime.decoding.choosing.followed import follow, left_out_of, takes

INTEGER = {"type": "integer"}
TEXTS = ('a"b', "a\\b", "a\nb", "ab", "a-b", "a]b", "a,b", "7b")


@pytest.mark.parametrize("extra", [{}, {"minLength": 1}])
@pytest.mark.parametrize(
    "pattern",
    [
        *('^[^"]+$', r'^[^"\\]+$', r"^[^\\]+$", '^[^<>"]+$', r'^[^"\n]{1,9}$', r'^\w[^"]*$', r"^[^\n]+$", "^[^,]+$"),
        *('^[^-"]+$', r"^[^]\\]+$", r'^([^"\\]|\\.)*$', '^(?:a|[^"])+$', r'^[^\S "]+$|^ab$', r"^[\x00-\x7f]+$"),
    ],
)
def test_quotes_and_backslashes_are_where_a_pattern_has_them(pattern: str, extra: dict[str, Any]) -> None:
    schema = {"type": "string", "pattern": pattern} | extra
    quoted = {text: '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' for text in TEXTS}
    assert [text for text in TEXTS if takes(schema, quoted[text])] == [
        text for text in TEXTS if re.search(pattern.replace("[^]", r"[\s\S]"), text)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        *("^[\x00-!#-~]+$", r"^[\x00-\x1fa]+$", r"^\P{P}+$", r"^\p{Cc}a$", r"^(\x00|[\x01-!]|a)+$"),
        *(r"^[\u{0}-\u{21}]+$", r"^[+--]$"),
    ],
)
def test_patterns_with_control_characters_but_no_quotes_are_refused_or_left_out(pattern: str) -> None:
    for schema in ({"type": "string", "pattern": pattern}, {"type": "object", "patternProperties": {pattern: {}}}):
        with pytest.raises(ValueError, match=r"attern.* is not supported"):
            follow(schema)
        assert len(left_out_of(schema)) == 1


def test_patterns_of_keys_hold_quotes_too() -> None:
    keys = {"type": "object", "patternProperties": {'^[^"]+$': INTEGER}, "additionalProperties": {"type": "string"}}
    assert takes(keys, r'{"a":1,"a\"":"x"}')
    assert not takes(keys, r'{"a\"":1}')
    assert not takes(keys, '{"a":"x"}')


def test_an_empty_pattern_asks_for_nothing() -> None:
    assert takes({"type": "string", "pattern": ""}, '"a"')


@pytest.mark.parametrize("key", [r"\u0078", r"x\u00e9", r"x\ud83d\ude00"])
def test_no_key_escapes_its_pattern_by_its_spelling(key: str) -> None:
    schema = {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": True}
    assert not takes(schema, f'{{"{key}":true}}')
    assert takes(schema, '{"xé":1,"y":true}')


def closed(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {pattern: INTEGER}, "additionalProperties": False} | more


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (closed("^(id)$"), '{"id":1}', '{"id":1,"id":2}'),
        (closed("^(a|b)$"), '{"a":1,"b":2}', '{"a":1,"b":2,"a":3}'),
        (closed("^[ab]$"), '{"b":1,"a":2}', '{"b":1,"a":2,"b":3}'),
        (closed("^$"), '{"":1}', '{"":1,"":2}'),
        (closed("^(id|x)$", required=["id"]), '{"id":1}', '{"x":1}'),
        (closed("^(id|x)$", properties={"b": {"const": 1}}), '{"b":1,"id":1,"x":1}', '{"id":1,"id":1}'),
        (closed("^(a)$", additionalProperties={"enum": []}), '{"a":1}', '{"a":1,"a":2}'),
        ({"allOf": [closed("^(a)$"), {"required": ["a"]}]}, '{"a":1}', '{"a":1,"a":2}'),
    ],
)
def test_where_every_key_was_taken_the_object_ends(schema: dict[str, Any], right: str, wrong: str) -> None:
    assert takes(schema, right)
    assert not takes(schema, wrong)


def test_keys_that_cannot_be_enough_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="it allows nothing"):
        follow(closed("^(id)$", minProperties=2))
    both = {"type": "object", "properties": {"": INTEGER}, "required": ["", "z"], "patternProperties": {"^$": INTEGER}}
    with pytest.raises(ValueError, match="'patternProperties' for '', which is listed is not supported"):
        follow(both)
    assert len(left_out_of(both)) == 1


@pytest.mark.parametrize(
    ("choices", "overlap"),
    [
        (
            [
                {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}},
                {"type": "object", "properties": {"id": {"enum": [7]}}, "required": ["id"]},
            ],
            '{"id":7}',
        ),
        ([{"type": "object", "properties": {"a": INTEGER}}, {"enum": [{"b": 1}]}], '{"b":1}'),
        ([{"$ref": "#/$defs/a"}, {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]}], '{"b":1}'),
    ],
)
def test_choices_that_overlap_before_objects_are_closed_are_refused_or_any_of_them(choices: Any, overlap: str) -> None:
    one = {"oneOf": choices, "$defs": {"a": {"type": "object", "properties": {"a": INTEGER}}}}
    for schema in (one, {"$ref": "#/$defs/one", "$defs": one["$defs"] | {"one": {"oneOf": choices}}}):
        with pytest.raises(ValueError, match="'oneOf' beyond 'anyOf' is not supported"):
            follow(schema)
        assert left_out_of(schema) == ["'oneOf' beyond 'anyOf'"]
        assert takes(schema | {"x-guidance": {"lenient": True}}, overlap)


def test_choices_that_a_listed_text_tells_apart_stay() -> None:
    kinds = [{"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"]
    assert takes({"oneOf": kinds}, '{"kind":"b"}')
    assert not takes({"oneOf": kinds}, '{"kind":"b","c":1}')
    properties = {"type": "object", "properties": {"oneOf": {"type": "object", "properties": {"a": INTEGER}}}}
    assert takes(properties, '{"oneOf":{"a":1}}')


@pytest.mark.parametrize("name", ["é", "a b", "p%25q", "a~1b", 'q"^', "%C3%A9"])
def test_references_may_have_any_characters(name: str) -> None:
    definitions = dict.fromkeys(("é", "a b", "p%q", "a/b", 'q"^'), INTEGER)
    assert takes({"$ref": f"#/$defs/{name}", "$defs": definitions}, "1")
    assert not takes({"$ref": f"#/$defs/{name}", "$defs": definitions}, '"a"')


@pytest.mark.parametrize("schema", [{"type": "number"}, {}])
def test_exponents_are_no_longer_than_readers_have_room_for(schema: dict[str, Any]) -> None:
    for right in ("1e99", "-1.5E+22", "1e-07", "1000"):
        assert takes(schema, right)
    for wrong in ("1e999999", "1e100", "-1E+100", "1.0e-100"):
        assert not takes(schema, wrong)
    assert takes({}, '{"1e999":["1e9999",10000,1e10]}')


def test_options_in_a_schema_leave_its_answers_json_that_follows_it() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
    odd = {"item_separator": " ; ", "key_separator": "=", "whitespace_pattern": "x*", "json_allowed_escapes": "u"}
    assert takes(schema | {"x-guidance": odd}, '{"a":1,"b":2}')
    assert takes(schema | {"x-guidance": {"item_separator": ", ", "key_separator": ": "}}, '{"a": 1, "b": 2}')
    with pytest.raises(ValueError, match="'oneOf' beyond 'anyOf'"):
        follow({"oneOf": [INTEGER, {"minimum": 2}], "x-guidance": {"coerce_one_of": True}})
