"""The OpenAPI document tells what the server takes, no more and no less: both come from the same classes."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from reader_edge.server.endpoints import ENDPOINTS
from reader_edge.server.settings import LIMIT_HEADER
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.contract_cases import BODIES, Case, all_cases, half_characters
from tests.reader_edge.server.openai.test_refusals import assert_refused


@pytest.fixture(scope="module")
def schemas(chat_engine: Any) -> dict[str, Any]:
    """The schemas of bodies by their paths, each with the classes that it refers to."""
    from reader_edge.server.openapi import openapi_document
    from reader_edge.server.settings import ServerSettings

    document: Any = openapi_document(ServerSettings("demo", max_tokens=500), chat_engine.package.manifest)
    sent = {path: document["paths"][path]["post"]["requestBody"]["content"]["application/json"] for path in ENDPOINTS}
    return {path: {**body["schema"], "components": document["components"]} for path, body in sent.items()}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_is_requested_most_is_in_the_document(schemas: dict[str, Any], path: str) -> None:
    jsonschema.validate(BODIES[path], schemas[path])


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_a_field_that_does_not_fit_its_class_is_refused_by_its_place(
    served: Served, schemas: dict[str, Any], case: Case
) -> None:
    response = served.post(case.path, case.body)
    assert_refused(response, 400)
    assert case.place in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == case.place
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(case.body, schemas[case.path])


@pytest.mark.parametrize("case", half_characters(), ids=str)
def test_half_a_character_anywhere_is_answered_or_refused(served: Served, case: Case) -> None:
    fields = {field.name for field in msgspec.structs.fields(ENDPOINTS[case.path].body_type)}
    limits = {name: 1 for name in ("max_tokens", "max_output_tokens") if name in fields}
    body = json.dumps({**limits, **case.body})
    response = served.request("POST", case.path, content=body, headers={"Content-Type": "application/json"})
    if response.status_code != 200:
        assert_refused(response, 404 if case.place == "model" else 400)


@pytest.mark.parametrize(
    ("field", "value", "is_optional"),
    [
        ("tools", [{"function": {"name": "f"}}], True),
        ("response_format", {"json_schema": {"name": "f", "schema": {}}}, False),
    ],
)
def test_a_type_may_be_left_out_where_there_is_but_one(
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
def test_who_asks_for_more_tokens_than_there_may_be_is_shown_the_limit(
    served: Served, path: str, name: str, sent: int
) -> None:
    response = served.post(path, BODIES[path] | {name: sent, "stop": ["e"]})
    assert response.status_code == 200, response.text
    assert response.headers[LIMIT_HEADER] == "500"
    streamed = served.post(path, BODIES[path] | {name: sent, "stop": ["e"], "stream": True})
    assert streamed.headers[LIMIT_HEADER] == "500"
    assert LIMIT_HEADER not in served.post(path, BODIES[path] | {name: 500, "stop": ["e"]}).headers
