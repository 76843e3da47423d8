"""Tools: given to the model, called when they must be, with arguments of their schemas, streamed or whole."""

import json
from typing import Any

import pytest

from reader_edge_runtime import Conversation, Engine
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_answers import events
from tests.reader_edge.server.openai.test_refusals import assert_refused

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

USER = {"role": "user", "content": "What is the weather?"}


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": schema, **more}}


WEATHER = tool("weather", {"city": {"type": "string", "maxLength": 8}, "days": {"$ref": "#/$defs/days"}})
WEATHER["function"]["parameters"]["$defs"] = {"days": {"enum": [1, 2]}}
DEEP: dict[str, Any] = {}
for _ in range(60):
    DEEP = {"properties": {"a": DEEP}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
CALL = {"type": "function", "function": {"name": "time", "arguments": "{}"}}
CHAT = {"model": "demo", "messages": [USER], "tools": [WEATHER, TIME], "max_tokens": 300, "seed": 5}


def ask(served: Served, **fields: Any) -> dict[str, Any]:
    response = served.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def assert_right(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert list(arguments) == ["city", "days"]
        assert len(arguments["city"]) <= 8
        assert arguments["days"] in (1, 2)
    else:
        assert (call["function"]["name"], arguments) == ("time", {})


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_that_must_be_is_made(served: Served, temperature: float) -> None:
    choice = ask(served, tool_choice="required", parallel_tool_calls=False, temperature=temperature)
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert (call["type"], len(call["id"])) == ("function", 9)
    assert_right(call)


def test_a_named_tool_is_called(served: Served) -> None:
    for name in ("weather", "time"):
        choice = ask(served, tool_choice={"type": "function", "function": {"name": name}}, temperature=1)
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == name
        assert_right(call)


@pytest.mark.parametrize("more", [{}, {"logprobs": True}])
def test_streamed_calls_are_the_whole_ones_in_parts(served: Served, more: dict[str, Any]) -> None:
    fields = {"tool_choice": "required", "temperature": 1, **more}
    whole = ask(served, **fields)
    pieces = [
        piece["choices"][0] for piece in events(served.post("/v1/chat/completions", CHAT | fields | {"stream": True}))
    ]
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        parts = piece["delta"].get("tool_calls", [])
        assert len({part["index"] for part in parts}) == len(parts)  # as clients expect that look at the first alone
        for part in parts:
            if "id" in part:
                assert part["index"] == len(calls)
                calls.append(part["function"])
            else:
                calls[part["index"]]["arguments"] += part["function"]["arguments"]
    assert calls == [call["function"] for call in whole["message"]["tool_calls"]]
    assert pieces[-1]["finish_reason"] == whole["finish_reason"]
    assert len(pieces) > 2
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == ""


def test_of_several_choices_each_has_its_own_calls(served: Served) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "n": 3, "temperature": 1}
    choices = served.post("/v1/chat/completions", CHAT | fields).json()["choices"]
    calls = [choice["message"]["tool_calls"][0] for choice in choices]
    for call in calls:
        assert_right(call)
    assert len({call["id"] for call in calls}) == 3
    pieces = events(served.post("/v1/chat/completions", CHAT | fields | {"stream": True}))
    streamed = {0: "", 1: "", 2: ""}
    for piece in pieces:
        for part in piece["choices"][0]["delta"].get("tool_calls", []):
            streamed[piece["choices"][0]["index"]] += part["function"]["arguments"]
    assert list(streamed.values()) == [call["function"]["arguments"] for call in calls]


def test_a_call_that_is_cut_ends_for_its_length(served: Served) -> None:
    choice = ask(served, tool_choice={"type": "function", "function": {"name": "weather"}}, max_tokens=12)
    assert choice["finish_reason"] == "length"


def test_a_call_that_a_stop_cuts_is_not_shown_as_a_whole_one(served: Served) -> None:
    say = tool("say", {"text": {"const": "ab, cd"}})
    held = {"tools": [say], "tool_choice": "required", "stop": "cd"}
    choice = ask(served, **held)
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["arguments"], choice["finish_reason"]) == ('{"text": "ab, ', "stop")
    (piece,) = events(served.post("/v1/chat/completions", CHAT | held | {"stream": True}))[-1]["choices"]
    assert piece["finish_reason"] == "stop"
    flat = {"type": "function"} | say["function"]
    sent = {"model": "demo", "input": "What is the weather?", "tools": [flat]}
    (item,) = served.post("/v1/responses", sent | {"tool_choice": "required", "stop": "cd"}).json()["output"]
    assert (item["arguments"], item["status"]) == ('{"text": "ab, ', "incomplete")


def test_a_strict_tool_that_may_be_called_is_called_by_its_schema_or_not(served: Served) -> None:
    strict = tool("weather", {"days": {"enum": [1, 2]}}, strict=True)
    for seed in range(4):
        choice = ask(served, tools=[strict], temperature=1, seed=seed, max_tokens=60)
        for call in choice["message"].get("tool_calls", ()):
            assert json.loads(call["function"]["arguments"]) in ({"days": 1}, {"days": 2})


def test_beside_tools_an_answer_may_have_a_form(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(4):
        choice = ask(served, response_format=form, temperature=1, seed=seed)
        for call in choice["message"].get("tool_calls", ()) if choice["finish_reason"] == "tool_calls" else ():
            assert_right(call)
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) in ({"a": 1}, {"a": 2})


def test_without_a_call_the_answer_is_that_of_the_engine(served: Served, chat_engine: Engine) -> None:
    choice = ask(served, temperature=0, max_tokens=30)
    expected = chat_engine.generate(Conversation([USER], [WEATHER, TIME]))
    assert choice["message"]["content"] == chat_engine.tokenizer.decode(expected.token_ids[:30])
    assert "tool_calls" not in choice["message"]
    none = ask(served, temperature=0, max_tokens=30, tool_choice="none")
    assert none["message"]["content"] == chat_engine.tokenizer.decode(chat_engine.generate([USER]).token_ids[:30])


def test_calls_and_what_tools_wrote_are_taken_as_messages(served: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    output = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]}
    ask(served, messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}, output], max_tokens=5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": "weather"}, "a list of tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [tool("a b", {})]}, "tools[0].function.name"),
        ({"tools": [tool('x"y', {})]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "has the name 'time' twice: give each tool its own."),
        ({"tools": [TIME] * 129}, "at most 128"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": 5}}]}, "a JSON schema"),
        ({"tools": [], "tool_choice": "required"}, "but there are no 'tools': give some"),
        (
            {"tools": [], "tool_choice": {"type": "function", "function": {"name": "x" * 10_000}}},
            f"'tool_choice' is '{'x' * 75}...', but there are no 'tools'",
        ),
        (
            {"tool_choice": "any"},
            "'tool_choice' is 'any', but must be 'none', 'auto', 'required', or one of the functions in 'tools'",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            "'tool_choice' is 'other', but must be one of the functions in 'tools' (weather, time) by name.",
        ),
        ({"parallel_tool_calls": 1}, "true or false"),
        ({"tool_choice": 0}, "'tool_choice' is 0, but must be 'none', 'auto', 'required', or one of the functions in"),
        ({"tool_choice": {}}, "'tool_choice.function' is missing, but must be an object with 'name'."),
        ({"guided_regex": "a"}, "any text or JSON"),
        *(({"guided_json": text}, "a sound JSON object") for text in ("{", "[1]", "true", "9" * 5000, "[" * 900)),
        ({"guided_json": {"x-guidance": "lenient"}}, "a sound JSON object"),
        ({"guided_json": {"x-guidance": [1]}}, "a sound JSON object"),
        (
            {"tools": [tool("x", {"a": {"type": "strange"}})], "tool_choice": "required"},
            "The grammar of the parameters of 'x' cannot be followed",
        ),
        (
            {"tools": [tool("x", {"a": DEEP})], "tool_choice": "required"},
            "The schema of the parameters of 'x' is nested 123 deep, but may be 120 at most: make it flatter.",
        ),
        ({"guided_json": json.dumps(DEEP)}, "The schema of 'guided_json' is nested 121 deep"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "tool_call_id"),
        ({"messages": [USER | {"tool_calls": [CALL]}]}, "for the role 'assistant', which is"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "tool_calls[0]"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": "x"}]}, "a list of calls"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1].content"),
    ],
)
def test_what_is_no_tool_or_call_is_refused(served: Served, fields: dict[str, Any], words: str) -> None:
    assert_refused(served.post("/v1/chat/completions", CHAT | fields), 400, words)
