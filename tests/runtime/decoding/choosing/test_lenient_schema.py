"""What of a schema that is not strict cannot be followed is left out, at every depth; a strict one is refused."""

import json
from typing import Any

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar
from reader_edge_runtime.decoding.choosing.lenient_schema import lenient_patterns, without_patterns
from reader_edge_runtime.errors import ConfigError

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


@pytest.mark.parametrize("name", SCHEMAS)
def test_patterns_that_cannot_be_read_are_left_out_of_lenient_schemas_alone(engine: Engine, name: str) -> None:
    config = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(SCHEMAS[name] | LENIENT)))
    assert engine.generate("# tar", config).token_ids
    strict = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(SCHEMAS[name])))
    with pytest.raises(ConfigError, match=r"cannot be followed \(.*(not supported|unrecognized|not found)"):
        engine.generate("# tar", strict)


def test_what_can_be_followed_of_a_lenient_schema_stays(engine: Engine) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": BAD, "b": {"type": "string", "pattern": "^x{3}$"}, "pattern": {"const": EMAIL}},
        "required": ["a", "b", "pattern"],
        "additionalProperties": False,
    }
    grammar = Grammar("json_schema", json.dumps(schema | LENIENT))
    assert lenient_patterns(grammar) == [EMAIL, "^x{3}$"]
    left = json.loads(without_patterns(grammar, {EMAIL}).text)
    assert left["properties"].pop("a") == {"type": "string"}
    assert left == schema | LENIENT | {"properties": dict(list(schema["properties"].items())[1:])}


def test_schemas_in_rules_are_lenient_where_they_say_so(engine: Engine) -> None:
    lark = "start: one | two\none: %json {}\ntwo: %json\n{}\n"
    grammar = Grammar("lark", lark.format(json.dumps(BAD | LENIENT, indent=1), json.dumps({"const": "%json {"})))
    assert lenient_patterns(grammar) == [EMAIL]
    assert engine.generate("# tar", GenerationConfig(max_tokens=5, grammar=grammar)).token_ids
    strict = Grammar("lark", lark.format(json.dumps(BAD), json.dumps(BAD | LENIENT)))
    with pytest.raises(ConfigError, match="look-around"):
        engine.generate("# tar", GenerationConfig(max_tokens=5, grammar=strict))


def test_patterns_that_name_one_key_are_left_out_of_lenient_schemas_alone(engine: Engine) -> None:
    keys = {"^[a-z]+$": {"type": "integer"}, "^[a-c]+$": {"type": "number"}}
    schema = {"type": "object", "patternProperties": keys, "properties": {"A": {"enum": [1, 2]}}, "required": ["A"]}
    config = GenerationConfig(max_tokens=5, grammar=Grammar("json_schema", json.dumps(schema | LENIENT)))
    assert engine.generate("# tar", config).text.startswith('{"A":')
    with pytest.raises(ConfigError, match="not disjoint"):
        engine.generate("# tar", GenerationConfig(grammar=Grammar("json_schema", json.dumps(schema))))


@pytest.mark.parametrize("text", ["{", "[1]", '{"x-guidance": 5}', "[" * 9000, "%json {", "%json"])
def test_what_is_no_schema_stays_as_it_is(text: str) -> None:
    for kind in ("json_schema", "lark", "regex"):
        grammar = Grammar(kind, text)
        assert lenient_patterns(grammar) == []
        assert without_patterns(grammar, {"a"}) == grammar
