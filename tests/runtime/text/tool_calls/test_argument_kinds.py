"""What is written without quotes stays a text wherever its schema does not clearly allow something else."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from reader_edge_runtime.text.tool_calls.argument_kinds import argument_of, arguments_of, kinds_of, roots_of
from reader_edge_runtime.text.tool_calls.call_body_parser import read_calls
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
LONG = {"minLength": 1}
WRITTEN = ["12345", "true", "null", '{"x": 1}', "[1]", "1e5"]
BODIES = {
    Notation.XML: "<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>",
    Notation.KEYS: "f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>",
}
CHAIN = {str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(99)} | {"99": TEXT}
MANY = [{"const": f"c{number}"} for number in range(999)]
Parameters = dict[str, Any]


def argument(schema: object, **definitions: object) -> Parameters:
    return {"type": "object", "properties": {"a": schema}, "$defs": definitions}


TEXTS: Mapping[str, Parameters] = {
    "anyOf beside a type": argument(TEXT | {"anyOf": [{"pattern": r"^\d+$"}, {"minLength": 10}]}),
    "oneOf beside a type": argument(TEXT | {"oneOf": [{"format": "date"}, LONG]}),
    "allOf beside a type": argument(TEXT | {"allOf": [LONG]}),
    "a reference beside a type": argument(TEXT | {"$ref": "#/$defs/X"}, X=LONG),
    "allOf": argument({"allOf": [TEXT, LONG]}),
    "allOf narrows types": argument({"allOf": [{"type": ["string", "integer"]}, {"type": ["boolean", "string"]}]}),
    "allOf narrows choices": argument({"allOf": [{"anyOf": [TEXT, NUMBER]}, {"oneOf": [TEXT, {"type": "null"}]}]}),
    "values of a type": argument({"type": "string", "anyOf": [{"enum": [12345, "b"]}, {"const": True}, {}]}),
    "choices in choices": argument({"anyOf": [{"anyOf": [TEXT]}, {"allOf": [{"$ref": "#/$defs/X"}]}]}, X=TEXT),
    "more choices than are followed": argument(TEXT | {"oneOf": MANY}),
    "more choices than are followed, beside allOf": argument({"allOf": [{"anyOf": MANY}, TEXT]}),
    "false choices": argument({"anyOf": [TEXT, False]}),
    "pattern": argument({"pattern": r"^\d+$"}),
    "format": argument({"format": "date"}),
    "minLength": argument({"minLength": 1}),
    "maxLength": argument({"maxLength": 9}),
    "a condition": argument({"if": True, "then": TEXT}),
    "an anchor": argument({"$ref": "#x"}, X={"$anchor": "x"} | TEXT),
    "a dynamic anchor": argument({"$dynamicRef": "#x"}, X={"$dynamicAnchor": "x"} | TEXT),
    "an escaped name": argument({"$ref": "#/$defs/X%20Y~1%C3%A9"}, **{"X Y/\u00e9": TEXT}),
    "a place in a list": argument({"$ref": "#/$defs/X/anyOf/1"}, X={"anyOf": [NUMBER, TEXT]}),
    "an address": {"$id": "http://e.x/s"} | argument({"$ref": "http://e.x/s#/$defs/X"}, X=TEXT),
    "a relative address": {"$id": "http://e.x/s"} | argument({"$ref": "t"}, X={"$id": "http://e.x/t"} | TEXT),
    "an address and an anchor": argument(
        {"$ref": "urn:x#y"}, X={"$id": "urn:x", "$defs": {"Y": {"$anchor": "y"} | TEXT}}
    ),
    "an identifier up to draft 7": argument({"$ref": "#x"}, X={"$id": "#x"} | TEXT),
    "a recursive choice": argument({"$ref": "#/$defs/X"}, X={"anyOf": [{"$ref": "#/$defs/X"}, TEXT]}),
    "a recursive type": argument({"$ref": "#/$defs/X"}, X=TEXT | {"allOf": [{"$ref": "#/$defs/X"}]}),
    "a chain of references": argument({"$ref": "#/$defs/0"}, **CHAIN),
    "additionalProperties": {"additionalProperties": TEXT},
    "unevaluatedProperties": {"unevaluatedProperties": TEXT},
    "patternProperties": {"patternProperties": {"^b": NUMBER, "^a": TEXT}, "additionalProperties": NUMBER},
    "a pattern that could take long": {"patternProperties": {"^(a+)+$": TEXT}},
    "allOf of the root": {"allOf": [{"properties": {"b": NUMBER}}, {"properties": {"a": TEXT}}]},
    "anyOf of the root": {"anyOf": [{"properties": {"b": TEXT}}, {"properties": {"a": TEXT}}]},
    "a condition of the root": {"if": {"required": ["b"]}, "then": {"properties": {"a": TEXT}}},
    "dependentSchemas": {"dependentSchemas": {"b": {"properties": {"a": TEXT}}}},
    "a referred root": {"$ref": "#/$defs/X", "$defs": {"X": argument(TEXT)}},
    **{
        f"properties beside {name}": argument(TEXT) | {name: [{"required": ["a"]}, {"required": ["b"]}]}
        for name in ("anyOf", "oneOf", "allOf")
    },
    **{
        f"properties beside more of {name} than is followed": argument(TEXT)
        | {name: [{"if": {"required": ["b"]}, "then": {"required": [f"c{number}"]}} for number in range(300)]}
        for name in ("anyOf", "oneOf", "allOf")
    },
}


def read(parameters: Parameters, written: str, notation: Notation = Notation.XML) -> Any:
    [(_, arguments)] = read_calls(BODIES[notation].format(written), CallSyntax(notation=notation), {"f": parameters})
    return arguments["a"]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_stays_a_text(name: str) -> None:
    parameters = json.loads(json.dumps(TEXTS[name]))
    for notation in BODIES:
        assert [read(parameters, written, notation) for written in WRITTEN] == WRITTEN


@pytest.mark.parametrize(
    ("parameters", "written", "value"),
    [
        (argument({"anyOf": [TEXT, NUMBER]}), "12345", 12345),
        (argument({"type": ["string", "integer"], "allOf": [{"type": "number"}]}), "12345", 12345),
        (argument({"$ref": "#/$defs/X"}, X=NUMBER), "12345", 12345),
        (argument({"type": "number", "format": "float"}), "1.5", 1.5),
        (argument({"format": "int32"}), "12345", 12345),
        (argument({"enum": [1, "2"]}), "1", 1),
        (argument({"enum": [1, "2"]}), "2", "2"),
        (argument({"type": ["integer", "null"], "enum": ["1", 2]}), "2", 2),
        (argument({"not": {"type": "number"}}), "12345", "12345"),
        (argument({}), "12345", 12345),
        ({"additionalProperties": NUMBER}, "12345", 12345),
        ({"patternProperties": {"^a": NUMBER}, "additionalProperties": TEXT}, "12345", 12345),
        ({"patternProperties": {"^b": TEXT}}, "12345", 12345),  # which nothing is declared of
        ({"anyOf": [{"properties": {"a": TEXT}}, {"properties": {"a": NUMBER}}]}, "12345", 12345),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"a": TEXT}}]}, "12345", "12345"),
        (argument({"$ref": "#/$defs/missing"}), "12345", 12345),
        (argument({"$ref": "http://[#x"}), "12345", 12345),
    ],
)
def test_another_value_is_read_where_the_schema_allows_it(parameters: Parameters, written: str, value: object) -> None:
    for notation in BODIES:
        found = read(parameters, written, notation)
        assert (type(found), found) == (type(value), value)


def test_arguments_are_declared_wherever_the_root_has_properties() -> None:
    root = argument(TEXT) | {"oneOf": [{"properties": {"b": NUMBER}}, {"allOf": [{"properties": {"c": TEXT}}]}]}
    assert arguments_of(roots_of(root)) == ["a", "b", "c"]
    assert argument_of(roots_of(root), "d") is None


def test_schemas_that_multiply_or_go_in_circles_are_given_up() -> None:
    twice: dict[str, Any] = {"anyOf": [{"minimum": 1}, {"maximum": 2}]}
    many = {"allOf": [json.loads(json.dumps(twice)) for _ in range(60)]}
    assert kinds_of(many, many) == []
    assert [kind["type"] for kind in kinds_of(TEXT | many, many)] == ["string"]
    for name in ("$ref", "$dynamicRef"):
        assert kinds_of({name: "#"}, {name: "#"}) == []
    every = {"allOf": [{"$ref": "#"}] * 300}
    assert argument_of(roots_of(every), "a") is None
