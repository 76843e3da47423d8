"""The contract of the interface: its document, fields of two names, and errors."""

import asyncio
import copy
import json
import logging
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.endpoints import (
    ANTHROPIC_ENDPOINTS,
    EVERY_ENDPOINT,
    LLAMA_CPP_ENDPOINTS,
    OLLAMA_ENDPOINTS,
    OPENAI_ENDPOINTS,
    READING_ENDPOINTS,
)
from reader_edge.server.ignored_fields import LeftOut, RefusedFields
from reader_edge.server.ollama.bodies import OllamaChatBody, Options
from reader_edge.server.openapi import openapi_document
from reader_edge.server.schema import decode
from reader_edge.server.settings import LIMIT_HEADER, ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from reader_edge_runtime.errors import (
    BusyError,
    CapacityError,
    ClosedError,
    ConfigError,
    InstallationError,
    PackageError,
    PromptError,
    StageLostError,
)
from tests.reader_edge.server.anthropic_requests import assert_refused as assert_refused_by_anthropic
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.contract_cases import (
    ANTHROPIC_BODIES,
    BODIES,
    LLAMA_CPP_BODIES,
    OLLAMA_BODIES,
    READING_BODIES,
    Case,
    all_cases,
    half_characters,
    is_unknown,
)
from tests.reader_edge.server.ollama_requests import assert_refused as assert_refused_by_ollama
from tests.reader_edge.server.openai.test_refusals import assert_refused

EVERY_BODY = {**BODIES, **OLLAMA_BODIES, **ANTHROPIC_BODIES, **LLAMA_CPP_BODIES, **READING_BODIES}
CASES = [
    *all_cases(),
    *all_cases(OLLAMA_ENDPOINTS, OLLAMA_BODIES),
    *all_cases(ANTHROPIC_ENDPOINTS, ANTHROPIC_BODIES),
    *all_cases(LLAMA_CPP_ENDPOINTS, LLAMA_CPP_BODIES),
    *all_cases(READING_ENDPOINTS, READING_BODIES),
]
UNKNOWN = [case for case in CASES if is_unknown(case)]


def assert_refused_on(path: str, response: Any, status: int, words: str = "") -> None:
    """In the words of the interface that has the path."""
    if path.startswith("/api/"):
        assert_refused_by_ollama(response, status, words)
    elif path in ANTHROPIC_ENDPOINTS:
        assert_refused_by_anthropic(response, status, words)
    else:
        assert_refused(response, status, words)


@pytest.fixture(scope="module")
def schemas(chat_engine: Engine) -> dict[str, Any]:
    """The schemas of bodies by their paths, each with the classes that it refers to."""
    return schemas_of(chat_engine, "none")


def schemas_of(engine: Engine, refused_fields: RefusedFields) -> dict[str, Any]:
    settings = ServerSettings("demo", max_tokens=500, refused_fields=refused_fields)
    document: Any = openapi_document(settings, [engine.package.manifest])
    posts = {path: document["paths"][path]["post"]["requestBody"] for path in EVERY_BODY}
    sent = {path: body["content"]["application/json"]["schema"] for path, body in posts.items()}
    return {path: {**schema, "components": document["components"]} for path, schema in sent.items()}


@pytest.mark.parametrize("path", EVERY_BODY)
def test_what_is_requested_most_is_in_the_document(schemas: dict[str, Any], path: str) -> None:
    jsonschema.validate(EVERY_BODY[path], schemas[path])


@pytest.mark.parametrize("case", [case for case in CASES if not is_unknown(case)], ids=str)
def test_a_wrong_field_is_refused_by_its_place(served: Served, schemas: dict[str, Any], case: Case) -> None:
    response = served.post(case.path, case.body)
    assert_refused_on(case.path, response, 400, case.place)
    assert case.path not in OPENAI_ENDPOINTS or response.json()["error"]["param"] == case.place
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(case.body, schemas[case.path])


def test_an_unknown_field_changes_nothing_however_deep_it_is(schemas: dict[str, Any]) -> None:
    for case in UNKNOWN:
        kind, left_out = EVERY_ENDPOINT[case.path].body_type, LeftOut()
        decoded = decode(copy.deepcopy(case.body), kind, left_out)
        assert [*left_out.unknown] == ["made_up"]
        assert decode(without(case.body, "made_up"), kind) == decoded
        jsonschema.validate(case.body, schemas[case.path])


def test_a_strict_server_refuses_unknown_fields_by_their_place(async_engine: AsyncEngine) -> None:
    strict = Served(async_engine, ServerSettings("demo", refused_fields="all"))
    schemas = schemas_of(async_engine.engine, "all")
    for case in UNKNOWN:
        response = strict.post(case.path, case.body)
        assert_refused_on(case.path, response, 400, f"no field '{case.place}'")
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(case.body, schemas[case.path])


def without(value: Any, name: str) -> Any:
    """The same without a field, wherever it stands."""
    if isinstance(value, list):
        return [without(each, name) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: without(each, name) for key, each in value.items() if key != name}


@pytest.mark.parametrize("case", half_characters(), ids=str)
def test_half_a_character_anywhere_is_answered_or_refused(served: Served, case: Case) -> None:
    limit = "max_output_tokens" if case.path == RESPONSE else "max_tokens"
    body = json.dumps({limit: 1, **case.body})
    response = served.request("POST", case.path, content=body, headers={"Content-Type": "application/json"})
    if response.status_code != 200:
        assert_refused_on(case.path, response, 404 if case.place == "model" else 400)


@pytest.mark.parametrize(
    ("field", "value", "is_optional"),
    [
        ("tools", [{"function": {"name": "f"}}], True),
        ("response_format", {"json_schema": {"name": "f", "schema": {}}}, False),
    ],
)
def test_a_lone_type_may_be_left_out(
    served: Served, schemas: dict[str, Any], field: str, value: object, is_optional: bool
) -> None:
    path = "/v1/chat/completions"
    body = {**BODIES[path], field: value, "max_tokens": 1}
    assert served.post(path, body).status_code == (200 if is_optional else 400)
    assert jsonschema.Draft202012Validator(schemas[path]).is_valid(body) is is_optional


def test_limits_are_the_server_s_own(served: Served, schemas: dict[str, Any]) -> None:
    body = schemas["/v1/completions"]["components"]["schemas"]["CompletionBody"]
    token_ids = body["properties"]["prompt"]["anyOf"][1]
    most = token_ids["items"]["maximum"]
    assert served.post("/v1/completions", {"model": "demo", "prompt": [most], "max_tokens": 1}).status_code == 200
    beyond = served.post("/v1/completions", {"model": "demo", "prompt": [most + 1], "max_tokens": 1})
    assert beyond.status_code == 400


@pytest.mark.parametrize("sent", [501, 32_000, 10**30, -1])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "max_tokens"),
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_too_many_tokens_are_cut_to_the_limit(served: Served, path: str, name: str, sent: int) -> None:
    response = served.post(path, BODIES[path] | {name: sent, "stop": ["e"]})
    assert response.status_code == 200, response.text
    assert response.headers[LIMIT_HEADER] == "500"
    streamed = served.post(path, BODIES[path] | {name: sent, "stop": ["e"], "stream": True})
    assert streamed.headers[LIMIT_HEADER] == "500"
    assert LIMIT_HEADER not in served.post(path, BODIES[path] | {name: 500, "stop": ["e"]}).headers


CHAT, RESPONSE, OLLAMA_CHAT, MESSAGES = "/v1/chat/completions", "/v1/responses", "/api/chat", "/v1/messages"
FORM = {"type": "object", "maxProperties": 0}
JSON_FORM = {"type": "json_schema", "schema": FORM}
FUNCTION = {"name": "time", "parameters": FORM}
TWINS: list[tuple[str, str, Any, str, Any, Any]] = [  # a path, two places, a value of both, another one of the second
    *((path, "repetition_penalty", 1.2, "repeat_penalty", 1.2, 1.3) for path in BODIES),
    (CHAT, "max_tokens", 3, "max_completion_tokens", 3, 4),
    (CHAT, "reasoning_effort", "low", "chat_template_kwargs.reasoning_effort", "low", "high"),
    (CHAT, "enable_thinking", True, "chat_template_kwargs.enable_thinking", True, False),
    (CHAT, "reasoning_effort", "none", "enable_thinking", False, True),
    (CHAT, "add_generation_prompt", True, "chat_template_kwargs.add_generation_prompt", True, False),
    (CHAT, "messages.1.reasoning_content", "Hm.", "messages.1.reasoning", "Hm.", "Ha."),
    (CHAT, "tools.0.function.strict", False, "tools.0.strict", False, True),
    (MESSAGES, "output_config.format", JSON_FORM, "output_format", JSON_FORM, JSON_FORM | {"schema": {}}),
    (RESPONSE, "reasoning.effort", "low", "reasoning_effort", "low", "high"),
    (RESPONSE, "enable_thinking", True, "chat_template_kwargs.enable_thinking", True, False),
    (OLLAMA_CHAT, "messages.1.tool_name", "time", "messages.1.name", "time", "date"),
    ("/api/show", "model", "demo", "name", "demo", "other"),
    ("/api/pull", "model", "demo", "name", "demo", "other"),
]


def body_of(path: str, *output: tuple[str, Any]) -> dict[str, Any]:
    """A right body in which these places say this."""
    body: dict[str, Any] = {"model": "demo", **EVERY_BODY.get(path, {})}
    if path in (CHAT, OLLAMA_CHAT):
        body["messages"] = [*body["messages"], {"role": "assistant", "content": "Hm."}, body["messages"][0]]
        body["tools"] = [{"type": "function", "function": dict(FUNCTION)}]
    if path == OLLAMA_CHAT:
        body["options"] = {"num_predict": 1}
        body["messages"][1] = {"role": "tool", "content": "Noon."}
    elif path in (*BODIES, MESSAGES):
        body["max_output_tokens" if path == RESPONSE else "max_tokens"] = 1
    for place, value in output:
        *outer, name = place.split(".")
        inside: Any = body
        for each in outer:
            inside = inside[int(each)] if each.isdigit() else inside.setdefault(each, {})
        inside[name] = value
    return body


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: f"{twins[0]}:{twins[1]}:{twins[3]}")
def test_twins_agree_or_are_refused_by_name(served: Served, twins: tuple[str, str, Any, str, Any, Any]) -> None:
    path, first, value, second, same, other = twins
    taken = served.post(path, body_of(path, (first, value), (second, same)))
    assert taken.status_code == 200, taken.text
    refused = served.post(path, body_of(path, (first, value), (second, other)))
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert "leave one out" in message or "leave it out" in message
    for place in (first, second):
        assert f"'{place.replace('.0.', '[].').replace('.1.', '[1].')}'" in message


def test_ollama_s_effort_may_stand_twice() -> None:
    options = Options(reasoning_effort="low")
    assert OllamaChatBody(think="low", options=options).template_args()["reasoning_effort"] == "low"
    assert OllamaChatBody(think=True, options=options).template_args()["reasoning_effort"] == "low"
    with pytest.raises(ApiError, match="'think' is 'high' and 'options"):
        OllamaChatBody(think="high", options=options).template_args()


@pytest.mark.parametrize("path", BODIES)
def test_either_name_of_a_penalty_says_how_much_it_is(path: str) -> None:
    for name in ("repetition_penalty", "repeat_penalty"):
        body: Any = decode(body_of(path, (name, 1.2)), OPENAI_ENDPOINTS[path].body_type)
        assert body.config(8).sampling.repetition_penalty == 1.2
    neither: Any = decode(body_of(path), OPENAI_ENDPOINTS[path].body_type)
    assert neither.config(8).sampling.repetition_penalty == 1.0


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_of_the_most_tokens_is_refused_as_it_was_given(served: Served, name: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
    assert served.post(CHAT, body | {name: 2}).json()["usage"]["completion_tokens"] == 2
    assert f"'{name}' is 0" in served.post(CHAT, body | {name: 0}).json()["error"]["message"]


SHOWN = [
    (BusyError("Full."), 429, "queue_full", "Full."),
    (ClosedError("Closed."), 503, "shutting_down", "The server is shutting down."),
    (CapacityError("Too long."), 400, "kv_cache_exceeded", "Too long."),
    (PromptError("Empty."), 400, None, "Empty."),
    (ConfigError("No."), 400, None, "No."),
    (InstallationError("Install it."), 501, None, "Install it."),
    (RecursionError("deep"), 400, None, "The body is nested too deeply: make it flatter."),
]


@pytest.mark.parametrize(("error", "status", "code", "message"), SHOWN, ids=lambda each: type(each).__name__)
def test_mistakes_are_shown_with_their_remedy(error: Exception, status: int, code: str | None, message: str) -> None:
    shown = api_error(error)
    assert (shown.status, shown.code, str(shown)) == (status, code, message)
    assert ("Retry-After" in shown.response().headers) == (status in (429, 503))


def test_what_is_nobodys_mistake_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        shown = api_error(PackageError("/secret/place is damaged."))
    assert shown.status == 500
    assert "secret" not in str(shown)
    assert "/secret/place" in caplog.text


def test_a_lost_box_is_named_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        shown = api_error(StageLostError("Stage 1 at tcp://10.0.0.1:8001 is lost."))
    assert (shown.status, shown.code) == (503, "stage_lost")
    assert "10.0.0.1" not in str(shown)
    assert [record.getMessage() for record in caplog.records] == ["Stage 1 at tcp://10.0.0.1:8001 is lost."]
    assert caplog.records[0].exc_info is None


def test_what_is_shown_already_is_shown_as_it_is() -> None:
    error = ApiError(413, "Too large.", "input")
    assert api_error(error) is error


@pytest.mark.parametrize(
    ("path", "fields", "plain_path"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, "/v1/completions"),
        ("/v1/responses", {"input": "hello"}, "/v1/completions"),
        ("/api/chat", {"messages": [{"role": "user", "content": "hello"}]}, "/api/generate"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}]}, "/v1/completions"),
    ],
)
def test_no_template_names_another_path(
    demo_folder: Path, path: str, fields: dict[str, object], plain_path: str
) -> None:
    engine = AsyncEngine(Engine.load(demo_folder, EngineConfig(is_calibrated=False)))
    response = Served(engine, ServerSettings("demo", max_tokens=8)).post(path, {"model": "demo", **fields})
    asyncio.run(engine.close(cancels=True))
    assert response.status_code == 400
    assert f"send a plain prompt to {plain_path} instead of messages, or have" in response.text
