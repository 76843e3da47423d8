"""What cannot be followed of a schema is left out of a lenient one, and reported; where the library errs, is held."""

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
import json
import re
from typing import Any

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar
from reader_edge_runtime.errors import ConfigError
from tests.runtime.decoding.sampling.followed import follow, left_out_of, takes

LENIENT = {"x-guidance": {"lenient": True}}


# zod's own pattern of an e-mail address
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
BAD = {"type": "string", "pattern": EMAIL}
SCHEMAS: dict[str, dict[str, Any]] = {
    "properties": {"type": "object", "properties": {"a": BAD}, "required": ["a"], "additionalProperties": False},
    "items": {"type": "array", "items": BAD, "maxItems": 2},
    "prefixItems": {"type": "array", "prefixItems": [BAD], "minItems": 1, "maxItems": 1},
    "$defs": {"$ref": "#/$defs/mail", "$defs": {"mail": BAD}},
    "elsewhere": {"$ref": "#/parts/more/mail", "parts": {"more": {"mail": BAD}}},
    "anyOf": {"anyOf": [BAD, {"type": "null"}]},
    "oneOf": {"oneOf": [BAD, {"type": "null"}]},
    "allOf": {"allOf": [{"type": "string"}, {"pattern": EMAIL}]},
    "patternProperties": {"type": "object", "patternProperties": {EMAIL: {"type": "integer"}}},
    "closed patternProperties": {
        "type": "object",
        "patternProperties": {EMAIL: {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "format": BAD | {"format": "email"},
    **{
        text: {"type": "string", "pattern": text}
        for text in (r"a\Z", r"(a)\1", r"(?>a)b", r"(?<=a)b", r"\p{Foo}", r"a\b")
    },
}
NODE = {"type": "object", "properties": {"child": {"$ref": "#/$defs/node", "minProperties": 1}}}


# Other parts that the library does not follow, and how they are reported.
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "unique items": ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    "not": ({"type": "integer", "not": {"const": 3}}, "'not'"),
    "if": ({"if": {"type": "string"}, "then": {"minLength": 3}, "type": ["string", "null"]}, "'if', 'then'"),
    "dependent": ({"type": "object", "dependentSchemas": {"a": {"minProperties": 2}}}, "'dependentSchemas'"),
    "one of": ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "'oneOf' beyond 'anyOf'"),
    "counted keys": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": {}, "minProperties": 2},
        "'minProperties' and 'maxProperties'",
    ),
    "format": ({"type": "string", "format": "regex"}, "'format' 'regex'"),
    "reference": (
        {"type": "array", "items": {"$ref": "https://example.com/a.json"}},
        "'$ref' to 'https://example.com/a",
    ),
    "lost reference": ({"type": "array", "items": {"$ref": "#/$defs/lost"}}, "'$ref' to '#/$defs/lost'"),
    "step": ({"type": "number", "multipleOf": 0.07}, "'multipleOf' of 0.07"),
    "listed number": ({"enum": [1234567890123456789, 3]}, "the number 1234567890123456789 in 'enum'"),
    "number": ({"const": 1234567890123456789}, "the number 1234567890123456789 in 'const'"),
    "far bound": ({"type": "number", "minimum": 1e30}, "'minimum' of 1000000000000000000000000000000"),
    "farther bound": ({"type": "number", "minimum": 1e300}, "'minimum' of about 1.00000e+300"),
    "circle": ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, "all but its type (circular references"),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_patterns_that_cannot_be_read_are_left_out_of_lenient_schemas_alone(engine: Engine, name: str) -> None:
    config = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(SCHEMAS[name] | LENIENT)))
    answer = engine.generate("# tar", config)
    assert answer.token_ids
    assert len(answer.left_out) == 1
    assert "attern" in answer.left_out[0]
    strict = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(SCHEMAS[name])))
    with pytest.raises(ConfigError, match=r"cannot be followed \(.*(not supported|unrecognized|not found)"):
        engine.generate("# tar", strict)


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_cannot_be_followed_is_left_out_and_reported_or_refused(engine: Engine, name: str) -> None:
    schema, words = OTHERS[name]
    config = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(schema | LENIENT)))
    assert ", ".join(sorted(engine.generate("# tar", config).left_out)).startswith(words)
    with pytest.raises(ConfigError, match=r"^[^\n]+ cannot be followed \([^\n]+\): change or simplify it\.$"):
        engine.generate("# tar", GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(schema))))


def test_what_can_be_followed_of_a_lenient_schema_stays(engine: Engine) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"const": "x"} | BAD,
            "b": {"type": "string", "pattern": "^x{3}$"},
            "pattern": {"const": EMAIL},
        },
        "required": ["a", "b", "pattern"],
        "additionalProperties": False,
    }
    answer = engine.generate("# tar", GenerationConfig(grammar=Grammar("json_schema", json.dumps(schema | LENIENT))))
    assert json.loads(answer.text) == {"a": "x", "b": "xxx", "pattern": EMAIL}


def test_schemas_in_rules_are_lenient_where_they_say_so(engine: Engine) -> None:
    lark = "start: one | two\none: %json {}\ntwo: %json\n{}\n"
    grammar = Grammar("lark", lark.format(json.dumps(BAD | LENIENT, indent=1), json.dumps({"const": "%json {"})))
    answer = engine.generate("# tar", GenerationConfig(max_tokens=5, grammar=grammar))
    assert answer.left_out == (f"'pattern' {EMAIL!r:.80}",)
    strict = Grammar("lark", lark.format(json.dumps(BAD), json.dumps(BAD | LENIENT)))
    with pytest.raises(ConfigError, match="look-around"):
        engine.generate("# tar", GenerationConfig(max_tokens=5, grammar=strict))


def test_patterns_that_name_one_key_are_left_out_of_lenient_schemas_alone(engine: Engine) -> None:
    keys = {"^[a-z]+$": {"type": "integer"}, "^[a-c]+$": {"type": "number"}}
    schema = {"type": "object", "patternProperties": keys, "properties": {"A": {"enum": [1, 2]}}, "required": ["A"]}
    config = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(schema | LENIENT)))
    answer = engine.generate("# tar", config)
    assert answer.text.startswith('{"A":')
    assert "not disjoint" in answer.left_out[0]
    with pytest.raises(ConfigError, match="not disjoint"):
        engine.generate("# tar", GenerationConfig(grammar=Grammar("json_schema", json.dumps(schema))))


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


def test_patterns_of_keys_hold_quotes_and_an_empty_one_nothing() -> None:
    keys = {"type": "object", "patternProperties": {'^[^"]+$': INTEGER}, "additionalProperties": {"type": "string"}}
    assert takes(keys, r'{"a":1,"a\"":"x"}')
    assert not takes(keys, r'{"a\"":1}')
    assert not takes(keys, '{"a":"x"}')
    assert takes({"type": "string", "pattern": ""}, '"a"')
    nothing = {"uniqueItems": False, "not": False, "propertyNames": True, "dependentRequired": {}, "maxLength": 10**12}
    assert left_out_of(nothing) == []


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
