"""Responses that are kept, for clients that go on from one by its id."""

import json
from typing import Any

import jsonschema
import pytest

from reader_edge.server.openai import response_store
from reader_edge.server.openai.messages import MAX_ITEMS
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

FIRST: dict[str, Any] = {"model": "demo", "input": "What is tar?", "temperature": 0, "max_output_tokens": 8}
KEYS = (b"0123456789abcdef", b"fedcba9876543210")


@pytest.fixture
def keeping(async_engine: AsyncEngine) -> Served:
    return Served(async_engine, ServerSettings("demo", max_tokens=500, max_kept_responses=2))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_response_goes_on_from_one_before_as_from_its_whole_conversation(keeping: Served, is_streamed: bool) -> None:
    if is_streamed:
        text = keeping.post("/v1/responses", FIRST | {"stream": True}).text
        name = text.rpartition('"id": "resp_')[2].partition('"')[0]
        first = keeping.get(f"/v1/responses/resp_{name}").json()
    else:
        first = keeping.post("/v1/responses", FIRST).json()
    assert first["store"] is True
    second = {**FIRST, "input": "And git?", "previous_response_id": first["id"]}
    answer = keeping.post("/v1/responses", second).json()
    whole = [{"role": "user", "content": "What is tar?"}, *first["output"], {"role": "user", "content": "And git?"}]
    expected = keeping.post("/v1/responses", FIRST | {"input": whole, "store": False}).json()
    assert answer["output"][0]["content"] == expected["output"][0]["content"]
    assert answer["usage"]["input_tokens"] == expected["usage"]["input_tokens"]
    assert (answer["previous_response_id"], expected["store"]) == (first["id"], False)
    assert_refused(keeping.get(f"/v1/responses/{expected['id']}"), 404, "is not kept here")
    third = {**FIRST, "input": "And ls?", "previous_response_id": answer["id"]}
    assert keeping.post("/v1/responses", third).json()["usage"]["input_tokens"] > answer["usage"]["input_tokens"]


def test_responses_are_shown_and_dropped_and_the_oldest_goes_first(keeping: Served) -> None:
    shown = [keeping.post("/v1/responses", FIRST).json() for _ in range(3)]
    assert_refused(keeping.get(f"/v1/responses/{shown[0]['id']}"), 404, "is not kept here, or not any more")
    assert keeping.get(f"/v1/responses/{shown[1]['id']}").json() == shown[1]
    dropped = keeping.request("DELETE", f"/v1/responses/{shown[1]['id']}").json()
    assert dropped == {"id": shown[1]["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert keeping.request(method, f"/v1/responses/{shown[1]['id']}").status_code == 404
    gone = {**FIRST, "previous_response_id": shown[1]["id"]}
    assert_refused(keeping.post("/v1/responses", gone), 404, "is not kept here")


def test_nobody_goes_on_from_the_response_of_another_key(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", KEYS, max_tokens=500, max_kept_responses=9))
    own, other = ({"Authorization": f"Bearer {key.decode()}"} for key in KEYS)
    name = served.post("/v1/responses", FIRST, headers=own).json()["id"]
    assert served.get(f"/v1/responses/{name}", headers=own).status_code == 200
    for method in ("GET", "DELETE"):
        assert_refused(served.request(method, f"/v1/responses/{name}", headers=other), 404, "is not kept here")
    assert_refused(served.get(f"/v1/responses/{name}"), 401)
    again = {**FIRST, "previous_response_id": name}
    assert_refused(served.post("/v1/responses", again, headers=other), 404, "is not kept here")
    assert served.post("/v1/responses", again, headers=own).status_code == 200


def test_a_server_that_keeps_none_names_the_option(served: Served) -> None:
    assert served.post("/v1/responses", FIRST | {"store": True}).json()["store"] is False
    words = "No responses are kept here: start the server with `--keep-responses N`"
    assert_refused(served.post("/v1/responses", FIRST | {"previous_response_id": "resp_1"}), 400, words)
    assert_refused(served.get("/v1/responses/resp_1"), 400, words)


def test_a_response_with_half_a_character_is_shown_as_it_was_given(keeping: Served) -> None:
    body = json.dumps(FIRST | {"metadata": {"a": "\ud800"}}).encode()
    given = keeping.request("POST", "/v1/responses", content=body, headers={"content-type": "application/json"}).json()
    assert given["metadata"] == {"a": "\ud800"}
    assert keeping.get(f"/v1/responses/{given['id']}").json() == given


def test_what_is_kept_is_bounded_by_its_size_and_a_conversation_by_its_items(
    keeping: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {"type": "reasoning", "content": []}  # which no prompt shows, so that no context bounds it
    many = FIRST | {"input": [silent] * (MAX_ITEMS - 9) + [{"role": "user", "content": "Hi"}]}
    name = keeping.post("/v1/responses", many).json()["id"]
    more = FIRST | {"input": [silent] * 9, "previous_response_id": name}
    assert_refused(keeping.post("/v1/responses", more), 400, f"items, but at most {MAX_ITEMS} are read")
    monkeypatch.setattr(response_store, "_MAX_CHARACTERS", 10_000)
    last = keeping.post("/v1/responses", FIRST).json()["id"]
    assert keeping.get(f"/v1/responses/{last}").status_code == 200
    assert_refused(keeping.get(f"/v1/responses/{name}"), 404, "is not kept here")


def test_who_speaks_as_anthropics_clients_is_refused_in_their_form(keeping: Served) -> None:
    for method in ("GET", "DELETE"):
        refused = keeping.request(method, "/v1/responses/resp_1", headers={"anthropic-version": "2023-06-01"})
        assert (refused.status_code, refused.json()["type"]) == (404, "error")


def test_the_document_of_the_server_tells_how_kept_responses_are_shown_and_dropped(keeping: Served) -> None:
    path, name = "/v1/responses/{name}", keeping.post("/v1/responses", FIRST).json()["id"]
    operations = keeping.get("/openapi.json").json()["paths"][path]
    for method in ("get", "delete"):
        answer = operations[method]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(keeping.request(method.upper(), path.format(name=name)).json(), answer)
        assert (
            str(keeping.request(method.upper(), path.format(name="other")).status_code)
            in operations[method]["responses"]
        )
