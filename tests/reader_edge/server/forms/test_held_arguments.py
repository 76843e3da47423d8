"""Calls that a grammar holds: no key comes twice, numbers are in reach, the schema is satisfied."""

import json
import random
import re
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
pytest.importorskip("jsonschema", reason="it is not installed: pip install 'reader-edge[grammar]'")

from reader_edge.server.tool_grammar import tool_grammar
from reader_edge_runtime.decoding.choosing.grammar_worker import ADVANCE
from reader_edge_runtime.decoding.choosing.grammar_worker.checking import number, problem_of
from reader_edge_runtime.decoding.choosing.grammar_worker.following import Followed
from reader_edge_runtime.text.tool_calls.streaming_calls import call_head, call_tail
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.server.forms.call_families import form_of
from tests.reader_edge.server.forms.read_calls import read_calls
from tests.runtime.decoding.choosing.followed import allowed, follow, random_answer, takes, wild_schema

JSON = ("hermes", "mistral with names", "gpt-oss", "deepseek v3", "llama 3", "apertus", "phi 4 mini", "functionary")
ONE_BY_ONE = ("qwen3-coder", "glm", "seed-oss")
# Longer than the bytes that are the vocabulary else, as those of models: keys and exponents may end inside.
TOKENS = (b'"a"', b'"a', b'{"a":', b', "a": ', b'": {"a', b'a": ', b"1e1", b"e1", b"11", b'\\"', b'a\\"', b'""', b"}}")
ENDS = b'"ae1}]:,'
Schema = dict[str, Any]


def use_of(parameters: Schema, is_strict: bool, is_required: bool = True) -> ToolUse:
    function = {"name": "f", "parameters": parameters, "strict": is_strict}
    return ToolUse(({"type": "function", "function": function},), ("f",), is_required, False, is_strict)


def held(use: ToolUse, name: str, more: tuple[bytes, ...] = ()) -> tuple[Followed, tuple[str, ...]]:
    """The grammar of calls as a family writes them, and what it does not hold. Raises ApiError or ValueError."""
    grammar = tool_grammar(use, form_of(name), None)
    assert grammar is not None
    followed = follow(grammar.text, grammar.kind, more)
    return followed, (*grammar.left_out, *followed.left_out)


def once(pairs: list[tuple[str, Any]]) -> Schema:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def short(text: str) -> float:
    assert not re.search("[eE][+-]?[0-9]{3}", text), text
    return float(text)


def checked(text: str) -> Any:
    """A JSON text in which no key comes twice and no exponent is long."""
    return json.loads(text, object_pairs_hook=once, parse_float=short)


def output(text: str, use: ToolUse, name: str) -> str:
    """The arguments of the one call of an answer."""
    _, ((called, arguments),) = read_calls(text, 10_000, use, form_of(name))
    assert called == "f"
    return arguments


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("name", JSON)
def test_arguments_in_json_satisfy_any_schema_and_no_key_of_them_comes_twice(name: str, is_strict: bool) -> None:
    num_held = num_valid = 0
    place = JSON.index(name) * 20
    for seed in range(place, place + 20):
        parameters = wild_schema(seed) | {"type": "object"}
        rng = random.Random(seed)
        try:
            followed, left_out = held(use_of(parameters, is_strict), name, TOKENS)
        except ValueError as refusal:
            reason = str(refusal)
        else:
            reason = ""
        assert is_strict or not reason or "allows nothing" in reason, (parameters, reason)
        if reason:
            continue
        num_held += 1
        answer = random_answer(followed, rng, ENDS, 400, 0.8)
        if answer is None:
            continue
        arguments = output(answer, use_of(parameters, is_strict), name)
        checked(arguments)
        if not left_out:
            exact = json.loads(json.dumps(parameters), parse_float=number)
            assert problem_of(exact, arguments) == "", (parameters, arguments)
            num_valid += 1
    assert num_held > 5
    assert num_valid > 2


OPEN: Schema = {"type": "object", "properties": {"e": {"type": "integer"}}, "additionalProperties": {"type": "number"}}
FREE = (
    OPEN,
    {"type": "object"},
    {"type": "array", "items": {"type": "object"}},
    {"type": "number"},
    {"type": "object", "patternProperties": {"^a": {"type": "number"}}, "additionalProperties": True},
    {"type": ["array", "object", "number"]},
)


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize("name", [*JSON, *ONE_BY_ONE])
def test_keys_and_exponents_of_free_arguments_are_held_in_every_notation(name: str, is_required: bool) -> None:
    parameters = {"type": "object", "properties": dict(zip("pqrstu", FREE, strict=True)), "required": ["r", "s"]}
    use, form = use_of(parameters, True, is_required), form_of(name)
    rng = random.Random(f"{name}{is_required}")
    begun = "" if is_required else form.tag or "{"
    num_keys = num_whole = 0
    for _ in range(6):
        followed, _ = held(use, name, TOKENS)
        text = f'"{{"a":1e999,"a":1e999 {begun}' if begun == form.tag != "" else begun  # in which anything may stand
        for byte in text.encode():
            assert byte in allowed(followed)
            followed.reply(ADVANCE, [byte])
        answer = random_answer(followed, rng, ENDS, 1500, 0.85)
        if answer is None:
            continue
        if name in ONE_BY_ONE:
            before, between, behind = (re.escape(part) for part in form.parameter)
            values = re.findall(f"{before}[p-u]{between}(.*?){behind}", answer, re.DOTALL)
            assert values
        else:
            values = [output(begun + answer, use, name)]
        for value in values:
            num_keys += len(re.findall('"a', value)) > 1
            checked(value)
        num_whole += 1
    assert num_whole > 1
    assert num_keys


def test_what_is_written_as_it_is_may_look_like_an_exponent_or_an_object() -> None:
    words = ["1e99", "1e999", '{"a":1,"a":2}', 'say "x', "1e9999"]
    parameters = {"type": "object", "properties": {"a": {"enum": words}, "b": OPEN, "c": {"type": "string"}}}
    for name in ONE_BY_ONE:
        form = form_of(name)
        before, between, behind = form.parameter
        for word in words:
            for value in ('{"e": 1, "a": 1e99}', '{"a": 1, "a": 2}', '{"a": 1e100}'):
                arguments = {"a": word, "b": value, "c": '{"a":1e999,"a":1'}
                inner = "".join(before + key + between + each + behind for key, each in arguments.items())
                use = use_of(parameters, True)
                text = form.begin + "f" + form.between + inner + form.end
                followed, _ = held(use, name)
                assert takes(followed, text) == value.startswith('{"e"'), (name, text)


@pytest.mark.parametrize("name", [*JSON, *ONE_BY_ONE])
def test_a_tool_may_be_called_whatever_its_name(name: str) -> None:
    names, form = ("get1e12", "get1e1234", "get1e99.1e999"), form_of(name)
    functions = tuple({"type": "function", "function": {"name": each}} for each in names)
    for each in names:
        grammar = tool_grammar(ToolUse(functions, names, is_required=True, is_parallel=False), form, None)
        assert grammar is not None
        arguments = "" if name in ONE_BY_ONE else "{}"
        text = form.opening + call_head(form, each) + arguments + call_tail(form) + form.closing
        assert takes(follow(grammar.text, grammar.kind), text)
