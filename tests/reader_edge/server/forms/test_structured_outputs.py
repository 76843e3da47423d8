"""Answers in a form that the request names: every one has it, and what cannot be followed is refused."""

import asyncio
import json
import re
from typing import Any

import pytest

from reader_edge.server.settings import LEFT_OUT_HEADER
from reader_edge_runtime import Engine, GenerationConfig, Grammar
from tests.reader_edge.server.conftest import LIMIT_S, Served
from tests.reader_edge.server.openai.test_answers import events
from tests.reader_edge.server.openai.test_refusals import assert_refused

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is tar?"}],
    "max_tokens": 200,
    "seed": 4,
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "kind": {"enum": ["archive", "shell"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "tool", "schema": SCHEMA, "strict": True}}


def is_tool(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "kind"] and len(value["name"]) <= 9 and value["kind"] in ("archive", "shell")


def content(served: Served, **fields: Any) -> str:
    response = served.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_have_the_form_of_a_schema(served: Served, temperature: float) -> None:
    assert is_tool(content(served, response_format=FORMAT, temperature=temperature))


def test_a_streamed_answer_has_it_too_and_a_seed_repeats_it(served: Served) -> None:
    pieces = events(served.post("/v1/chat/completions", CHAT | {"response_format": FORMAT, "stream": True}))
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert is_tool(text)
    assert text == content(served, response_format=FORMAT)


def test_a_form_holds_what_the_answer_adds_to_a_message_that_it_continues(served: Served) -> None:
    begun = [*CHAT["messages"], {"role": "assistant", "content": '{"name": "x'}]
    output = content(served, messages=begun, continue_final_message=True, response_format=FORMAT)
    assert is_tool(output)


def test_a_json_object_is_one(served: Served) -> None:
    closing = {"93": 8, "2395": 8}  # "}" and a text that ends before it: the demo alone would not end
    fields = {"response_format": {"type": "json_object"}, "temperature": 0}
    assert isinstance(json.loads(content(served, **fields, logit_bias=closing)), dict)


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "[a-f]{3,5}"}},
        {"guided_regex": "[a-f]{3,5}"},
        {"structured_outputs": {"choice": ["abc", "dead"], "json": None}},
        {"guided_choice": ["abc", "dead"]},
        {"structured_outputs": {"grammar": "start: /[a-f]{3,5}/"}},
    ],
)
def test_the_names_of_vllm_are_understood_in_both_interfaces(served: Served, fields: dict[str, Any]) -> None:
    assert re.fullmatch("[a-f]{3,5}", content(served, **fields))
    assert re.fullmatch("[a-f]{3,5}", served.complete(max_tokens=20, **fields)["choices"][0]["text"])


def test_a_schema_of_vllm_s_names_may_be_an_object_or_its_text(served: Served) -> None:
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        assert is_tool(content(served, guided_json=schema))
        assert is_tool(content(served, structured_outputs={"json": schema}))


def test_without_strict_what_cannot_be_followed_is_left_out_of_a_schema(served: Served) -> None:
    schema = SCHEMA | {"dependentSchemas": {"name": {"minProperties": 2}}}
    form = {"type": "json_schema", "json_schema": {"name": "tool", "schema": schema}}
    assert is_tool(content(served, response_format=form))
    for stream in (False, True):
        answer = served.post("/v1/chat/completions", CHAT | {"response_format": form, "stream": stream})
        assert json.loads(answer.headers[LEFT_OUT_HEADER]) == ["'dependentSchemas'"]
    assert LEFT_OUT_HEADER not in served.post("/v1/chat/completions", CHAT | {"response_format": FORMAT}).headers
    for options in ({}, {"x-guidance": {"lenient": True}}):  # which only `strict` may say
        form["json_schema"] = {"name": "tool", "schema": schema | options, "strict": True}
        refused = served.post("/v1/chat/completions", CHAT | {"response_format": form})
        assert_refused(refused, 400, "dependentSchemas")


def test_the_answer_is_that_of_the_engine_drafted_or_plain(served: Served, chat_engine: Engine) -> None:
    form = content(served, response_format=FORMAT, temperature=0)
    for is_drafted in (True, False):
        config = GenerationConfig(200, grammar=Grammar("json_schema", json.dumps(SCHEMA)), is_drafted=is_drafted)
        assert chat_engine.generate(CHAT["messages"], config).text == form


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": "json"}, "an object with 'type'"),
        ({"response_format": {"type": "xml"}}, "one of 'text', 'json_object', 'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "an object 'schema'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "'response_format.json_schema.schema' is 5, but must be a JSON schema",
        ),
        ({"response_format": FORMAT, "guided_regex": "a"}, "cannot both say"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "'structured_outputs' says more than once"),
        ({"guided_regex": 5}, "'guided_regex' is 5, but must be a text."),
        ({"guided_choice": "abc"}, "a JSON list of texts"),
        ({"guided_choice": ["a", 5]}, "'guided_choice[1]' is 5, but must be a text"),
        ({"guided_regex": "(a"}, "change or simplify it"),
        ({"guided_regex": "(.{0,6000}[^a]{0,6000}){6000}"}, "simplify it"),
        ({"guided_json": '{"allOf": [' * 80 + "{}" + "]}" * 80}, "The schema of 'guided_json' is nested 161 deep"),
        ({"guided_regex": "a" * 70_000}, "The grammar has 70000 characters, but may have 65536 at most"),
        ({"structured_outputs": {"xml": "a"}}, "'structured_outputs' holds answers to nothing: give it one of json"),
        ({"structured_outputs": []}, "'structured_outputs' is [], but must be an object."),
    ],
)
def test_what_is_no_form_is_refused(served: Served, fields: dict[str, Any], words: str) -> None:
    assert_refused(served.post("/v1/chat/completions", CHAT | fields), 400, words)


@pytest.mark.parametrize("depth", [300, 450, 470, 480, 490])
def test_a_deeply_nested_schema_is_followed_or_refused(served: Served, depth: int) -> None:
    nested = '{"allOf": [' * depth + "{}" + "]}" * depth
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": "NESTED"}}
    body = json.dumps(CHAT | {"response_format": form, "max_tokens": 3}).replace('"NESTED"', nested)
    headers = {"Content-Type": "application/json"}
    response = served.request("POST", "/v1/chat/completions", content=body, headers=headers)
    assert response.status_code in (200, 400), response.text
    if depth == 300:
        assert_refused(response, 400, "The schema of 'response_format' is nested 601 deep, but may be 120 at most")


def test_beside_hostile_grammars_others_get_their_answers(served: Served) -> None:
    hostile: dict[str, Any] = {"guided_regex": "|".join(f".{{{i}}}x" for i in range(1, 6000)), "temperature": 1}
    plain: dict[str, Any] = {"temperature": 0, "max_tokens": 30}

    async def ask_all() -> list[Any]:
        async with served.client() as client:
            sent: list[dict[str, Any]] = [
                plain,
                hostile,
                hostile,
                plain,
                {"response_format": FORMAT, "temperature": 0},
                hostile,
            ]
            posts = [client.post("/v1/chat/completions", json=CHAT | fields) for fields in sent]
            return await asyncio.gather(*posts)

    answers = asyncio.run(asyncio.wait_for(ask_all(), LIMIT_S))
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200, 200, 400]
    alone = served.post("/v1/chat/completions", CHAT | plain).json()["choices"]
    assert answers[0].json()["choices"] == answers[3].json()["choices"] == alone
    assert is_tool(answers[4].json()["choices"][0]["message"]["content"])
    assert_refused(answers[1], 400, "simplify it")
