"""What cannot be followed of a schema that is not strict is left out, and reported; a strict one is refused."""

import json
from typing import Any

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar
from reader_edge_runtime.errors import ConfigError
from tests.runtime.decoding.choosing.followed import left_out_of

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

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


def test_keywords_that_ask_for_nothing_are_no_part_to_leave_out() -> None:
    nothing = {"uniqueItems": False, "not": False, "propertyNames": True, "dependentRequired": {}, "maxLength": 10**12}
    assert left_out_of(nothing) == []


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
