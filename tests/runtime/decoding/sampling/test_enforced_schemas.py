"""Schemas: whatever an answer may be satisfies the one that was given, as a validator of its own reads it."""

import calendar
import json
import logging
import random
import re
from datetime import date
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
pytest.importorskip("jsonschema", reason="it is not installed: pip install 'reader-edge[grammar]'")

from reader_edge_runtime import Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.decoding.sampling.grammar_worker import ADVANCE
from reader_edge_runtime.decoding.sampling.grammar_worker.answer_check import number, problem_of
from tests.runtime.decoding.sampling.followed import (
    END,
    allowed,
    follow,
    left_out_of,
    problem_of_answer,
    random_answer,
    takes,
    wild_schema,
)

LENIENT = {"x-guidance": {"lenient": True}}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}


def problem(schema: dict[str, Any], answer: str) -> str:
    """What the validator finds."""
    return problem_of(json.loads(json.dumps(schema), parse_float=number), answer)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("is_lenient", [False, True])
def test_random_answers_satisfy_random_schemas_but_for_what_is_reported(part: int, is_lenient: bool) -> None:
    num_valid = num_held = 0
    for seed in range(60 * part, 60 * (part + 1)):
        schema = wild_schema(seed) | (LENIENT if is_lenient else {})
        try:
            followed = follow(schema)
        except ValueError as refusal:
            reason = str(refusal)
        else:
            reason = ""
        assert not (is_lenient and reason) or "allows nothing" in reason, (schema, reason)
        if reason:
            continue
        num_held += 1
        for again in range(2):
            answer = random_answer(follow(schema) if again else followed, random.Random(seed + again))
            if answer is not None and not followed.left_out:
                assert problem(schema, answer) == "", (schema, answer)
                num_valid += 1
            if not again and answer is not None:
                assert problem_of_answer(followed) == "", (schema, answer)
    assert num_held > 20
    assert num_valid > 20


@pytest.mark.parametrize(
    ("schema", "rights", "wrongs"),
    [
        ({"const": 2**53}, ["9007199254740992"], ["9007199254740993"]),
        ({"enum": [0.1, 1e-7, "a"]}, ["0.1", "0.0000001", '"a"'], ["0.2"]),
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            [str(2**62), "-5", str(-(2**62))],
            [str(2**63)],
        ),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, ["0", str(2**62)], ["-1", str(2**64)]),
        ({"type": "integer", "exclusiveMinimum": 2**53 + 1}, [str(2**54)], [str(2**53 + 1)]),
        ({"type": "integer", "minimum": 10**18}, [str(2 * 10**18)], [str(10**18 - 1), "5"]),
        ({"type": "number", "maximum": 1e30, "minimum": 0.1}, ["0.1", "0.5", str(10**18)], ["0.09", "-1"]),
        ({"type": "number", "exclusiveMaximum": 0.30000000000000004}, ["0.3"], ["0.30000000000000004", "0.31"]),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, ["6"], ["5"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.000001"], ["0", "0.0", "0.51"]),
        ({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}, ["-1.5", "-1.25"], ["-1", "-1.0", "-1.6"]),
        ({"type": "number", "multipleOf": 0.25}, ["0.50", "-1.75"], ["0.30"]),
    ],
)
def test_numbers_are_held_to_their_last_digit(schema: dict[str, Any], rights: list[str], wrongs: list[str]) -> None:
    assert [text for text in rights if not takes(schema, text)] == []
    assert [text for text in wrongs if takes(schema, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1234567890123456789]},
        {"const": 2**53 + 1},
        {"const": 1e23},
        {"const": {"id": [0.30000000000000004]}},
        {"enum": ["a", -(2**63)]},
        {"type": "number", "multipleOf": 0.07},
        {"type": "integer", "multipleOf": 10**10},
        {"type": "integer", "minimum": 2**63, "maximum": 2**64},
    ],
)
def test_numbers_that_cannot_be_held_are_refused_or_left_out(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not supported"):
        follow(schema)
    assert len(left_out_of(schema)) == 1


def test_listed_numbers_that_can_be_held_stay() -> None:
    schema = {"enum": [1234567890123456789, 3, "a"]} | LENIENT
    assert takes(schema, "3")
    assert not takes(schema, "4")
    only = {"const": 1234567890123456789} | LENIENT
    assert takes(only, "1234567890123456789")
    assert not takes(only, '"a"')


def test_no_key_comes_twice_under_any_spelling() -> None:
    assert takes(OPEN, '{"a":1,"b":"x","c":"y"}')
    for twice in ('{"a":1,"a":"x"}', '{"\\u0061":"x"}', '{"b":"x","b":"y"}', '{"b\\n":"x","b\\n":"y"}'):
        assert not takes(OPEN, twice), twice
    free: dict[str, Any] = {"type": "object"}
    assert takes(free, '{"a":{"a":[{"a":1},{"a":"a"}]},"b":2}')
    for twice in ('{"a":1,"a":2}', '{"b":{"a":1,"a":1}}', '[{"":1,"":1}]', '{"\\u000a":1,"\\n":1}'):
        assert not takes(free if twice.startswith("{") else {}, twice), twice


@pytest.mark.parametrize(
    ("begun", "token", "other"),
    [
        ('{"a":1', ',"a"', '{"b":1'),
        ('{"a":1', ',"b":1,"b"', ""),
        ('{"a":1,"', 'b":2,"b"', ""),
        ('{"a\\n":1,"a', '\\u000a"', '{"a":1,"a'),
        ('{"a\\"":1,"a', '\\""', '{"a":1,"a'),
        ('{"a\\"":1,"a\\', '""', '{"a":1,"a\\'),
        ('{"a":{"b":1', '},"a"', '{"b":{"b":1'),
        ('{"a":{"a":1,"b":2', '},"a"', '{"b":{"a":1,"b":2'),
    ],
)
def test_a_key_that_was_there_does_not_end_inside_a_longer_token(begun: str, token: str, other: str) -> None:
    for text in (begun, *([other] if other else [])):
        followed = follow({"type": "object"}, more=(token.encode(),))
        for byte in text.encode():
            assert byte in allowed(followed)
            followed.reply(ADVANCE, [byte])
        assert (END + 1 in allowed(followed)) == (text == other), text


def test_an_object_that_lists_its_keys_has_no_others_unless_it_says_so() -> None:
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    assert takes(listed, '{"a":1,"b":[]}')
    assert not takes(listed, '{"a":1,"b":[],"c":1}')
    assert takes(listed | {"additionalProperties": True}, '{"a":1,"b":[],"c":1}')
    joined = {"type": "object", "allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]}
    assert takes(joined, '{"a":1,"b":1}')
    assert takes({"$ref": "#/$defs/x", "$defs": {"x": listed}}, '{"a":1,"b":2}')
    more = {"$ref": "#/$defs/x", "properties": {"c": {}}, "required": ["c"], "$defs": {"x": listed}}
    assert takes(more, '{"a":1,"c":3,"b":2}')


def test_keys_of_a_fixed_length_come_once_and_leave_a_way_out() -> None:
    schema = {"type": "object", "patternProperties": {"^[ab]{2}$": {"const": 1}}, "additionalProperties": False}
    rng = random.Random(0)
    for _ in range(20):
        followed = follow(schema | {"minProperties": 3, "maxProperties": 3})
        answer = random_answer(followed, rng)
        assert answer is not None
        assert len(json.loads(answer)) == answer.count(":") == 3


def test_a_date_has_its_day() -> None:
    schema = {"type": "string", "format": "date"}
    for year in (1896, 1900, 2000, 2023, 2024, 2100, 2400):
        for month in range(1, 13):
            last = calendar.monthrange(year, month)[1]
            assert takes(schema, f'"{date(year, month, last)}"')
            assert not takes(schema, f'"{year}-{month:02}-{last + 1:02}"')
    for wrong in ("2024-00-10", "2024-13-01", "2024-01-00", "0000-01-01", "2024-1-1"):
        assert not takes(schema, f'"{wrong}"')


@pytest.mark.parametrize(
    ("name", "rights", "wrongs"),
    [
        ("time", ["23:59:59Z", "00:00:00.123+14:00"], ["23:59:60Z", "24:00:00Z", "12:00:00", "12:00:00z"]),
        (
            "date-time",
            ["2024-02-29T10:00:00Z"],
            ["2023-02-29T10:00:00Z", "2024-02-29 10:00:00Z", "2024-02-29t10:00:00Z"],
        ),
        ("hostname", ["a.example", "a-b.example"], ["-a.example", "a-.example", "a..example", "a" * 64, "a.b" * 90]),
        ("email", ["a.b@example.org", "a+b@x.y"], ["a@", ".a@x.y", "a..b@x.y", "a@-x.y", "a b@x.y"]),
        ("ipv4", ["192.168.0.1"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
    ],
)
def test_formats_are_no_wider_than_their_standards(name: str, rights: list[str], wrongs: list[str]) -> None:
    schema = {"type": "string", "format": name}
    assert [text for text in rights if not takes(schema, f'"{text}"')] == []
    assert [text for text in wrongs if takes(schema, f'"{text}"')] == []
    both = {"type": "string", "format": name, "pattern": "[12]"}
    assert [takes(both, f'"{text}"') for text in rights] == [re.search("[12]", text) is not None for text in rights]


def test_patterns_mean_what_they_mean_in_javascript() -> None:
    for pattern, right, wrong in (
        ("^[a&&b]+$", "a&b", "c"),
        ("^[[a]$", "[", "b"),
        ("^[~~x]$", "~", "y"),
        (r"^\d$", "5", "\u0665"),
    ):
        schema = {"type": "string", "pattern": pattern}
        assert takes(schema, f'"{right}"')
        assert not takes(schema, f'"{wrong}"')
        assert problem(schema, f'"{right}"') == ""
        assert problem(schema, f'"{wrong}"')


def test_a_missed_schema_is_logged(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow({"type": "array", "items": {"type": "integer"}})
    for byte in b"[12]":
        followed.reply(ADVANCE, [byte])
    assert END in allowed(followed)
    assert problem_of_answer(followed) == ""
    monkeypatch.setattr(followed, "_schema", {"$ref": "https://example.com/schema.json"})
    assert problem_of_answer(followed).startswith("?")
    monkeypatch.setattr(followed, "_schema", {"type": "array", "items": {"type": "string"}})
    assert problem_of_answer(followed) == "'type' at #/items/type does not hold"
    config = GenerationConfig(grammar=Grammar("json_schema", json.dumps({"const": [12]})))
    constraint = engine._grammars.constraint(config.grammar or Grammar("regex", ""))
    monkeypatch.setattr(constraint._process, "read", lambda: b"'type' at #/type does not hold")
    constraint.mask()
    constraint._has_begun = True
    with caplog.at_level(logging.WARNING):
        constraint.close()
        engine._grammars._checks.wait()
        assert engine.generate("# tar", config).text == "[12]"
        engine._grammars._checks.wait()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        "An answer does not satisfy its schema (grammar of kind 'json_schema'): 'type' at #/type does not hold."
    )


def test_the_validator_sees_what_python_s_json_hides() -> None:
    assert problem({"type": "object"}, '{"a":1,"a":2}') == "it is no JSON that every reader takes (a key comes twice)"
    assert problem({"const": 1234567890123456789}, "1234567890123456768")
    assert problem({"type": "number", "multipleOf": 0.1}, "0.3") == ""
    assert problem({"type": "integer"}, "1.0") == ""
    for number_text in ("1e999999", "-1E+9999999999999999999", "[2e308]"):
        assert "every reader" in problem({}, number_text)
    assert problem({}, "[1e308, 1e-999999]") == ""
    assert problem({"format": "date"}, '"2023-02-29"')
    with pytest.raises(Exception, match="example"):  # which is not fetched
        problem({"$ref": "https://example.com/schema.json"}, "1")


def test_answers_are_the_same_drafted_and_plain_where_keys_are_free(engine: Engine) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 3, "maxProperties": 5}
    for seed in range(2):
        sampling = SamplingConfig(temperature=1.0, seed=seed)
        config = GenerationConfig(60, sampling, grammar=Grammar("json_schema", json.dumps(schema)))
        drafted = engine.generate("# tar", config)
        plain = engine.generate("# tar", GenerationConfig(60, sampling, grammar=config.grammar, is_drafted=False))
        assert drafted.token_ids == plain.token_ids
