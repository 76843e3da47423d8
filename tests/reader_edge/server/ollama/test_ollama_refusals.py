"""Ollama's interface: what it refuses, in Ollama's shape, each in one sentence."""

import json
from typing import Any

import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.ollama_requests import CHAT, PROMPT, USER, assert_refused, lines, whole


def test_a_chat_has_no_more_messages_and_calls_than_openai_s(served: Served) -> None:
    call = {"function": {"name": "a"}}
    for messages in ([USER] * 10_001, [{"role": "assistant", "tool_calls": [call] * 10_001}, USER]):
        assert_refused(served.post("/api/chat", CHAT | {"messages": messages}), 400, "at most 10000")
    sent = {"model": "demo", "messages": [{"role": "assistant", "tool_calls": [call] * 10_001}]}
    assert served.post("/v1/chat/completions", sent).status_code == 400


def test_names_have_a_tag_or_none(served: Served) -> None:
    assert whole(served, "/api/generate", PROMPT | {"model": "demo:latest"})["model"] == "demo:latest"
    assert_refused(served.post("/api/generate", PROMPT | {"model": "demo:8b"}), 404, "model 'demo:8b' not found")
    assert_refused(served.post("/api/chat", {"messages": [USER]}), 400, "'model' is missing")


@pytest.mark.parametrize(
    ("served_as", "others"),
    [
        ("smollm2:135m", ["smollm2", "smollm2:latest", "smollm2:135m:latest"]),
        ("smollm2", ["smollm2:latest"]),
        ("smollm2:latest", ["smollm2"]),
        ("OWNER/NAME:8b", ["OWNER/NAME", "OWNER/NAME:latest"]),
    ],
)
def test_a_name_without_its_tag_or_with_the_latest_is_the_model(served_as: str, others: list[str]) -> None:
    settings = ServerSettings(served_as)
    assert all(map(settings.is_served, [served_as, *others]))
    wrong = ("", ":latest", "smollm", "smollm2:360m", "smollm2:135", "NAME", "OTHER/NAME:8b", "smollm2:135m:8b")
    assert not any(map(settings.is_served, wrong))


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/api/create", 501, "changes nothing"),
        ("POST", "/api/copy", 501, "changes nothing"),
        ("POST", "/api/push", 501, "changes nothing"),
        ("DELETE", "/api/delete", 501, "changes nothing"),
        ("POST", "/api/embed", 400, "no embeddings"),
        ("POST", "/api/embeddings", 400, "no embeddings"),
        ("POST", "/api/version", 405, "There is no POST /api/version here."),
        ("GET", "/api/nothing", 404, "There is no GET /api/nothing here."),
    ],
)
def test_what_cannot_be_done_is_refused(served: Served, method: str, path: str, status: int, words: str) -> None:
    assert_refused(served.request(method, path, json={"model": "demo"}), status, words)


def test_the_model_that_is_here_need_not_be_pulled_and_others_are_not(served: Served) -> None:
    assert served.post("/api/pull", {"model": "demo"}).text == '{"status": "success"}\n'
    assert served.post("/api/pull", {"name": "demo", "stream": False}).json() == {"status": "success"}
    assert_refused(served.post("/api/pull", {"model": "llama3"}), 501, "`reader-edge pull`")


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/api/chat", {"options": {"mirostat": 2}}, "'options.mirostat' is 2, which is not supported here"),
        ("/api/chat", {"options": {"typical_p": 0.5}}, "'options.typical_p' is 0.5, which is not supported here"),
        ("/api/chat", {"options": {"grammar": "a"}}, "'options.grammar' is 'a', which is not supported here"),
        ("/api/chat", {"options": {"temperature": -1}}, "'options.temperature' is -1"),
        ("/api/chat", {"options": {"num_predict": -3}}, "'options.num_predict' is -3"),
        (
            "/api/chat",
            {"messages": [USER | {"images": ["aGk="]}]},
            "'messages[0].content[0]' is of type 'image', but the model reads texts alone",
        ),
        ("/api/chat", {"format": "xml"}, "'format' is 'xml', but must be 'json' or a JSON schema"),
        ("/api/chat", {"think": True}, "'think' is true, but the model here does not think: leave it out."),
        ("/api/chat", {"think": "hardly"}, "'think' is 'hardly'"),
        ("/api/generate", {"suffix": "end"}, "'suffix' is given, but the model here has no"),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "'template' is '{{ .Prompt }}', which is not supported here"),
        ("/api/generate", {"context": [1, 2]}, "'context' is [1, 2], which is not supported here"),
        ("/api/chat", {"messages": [USER | {"images": ["?"]}]}, "'messages[0].images[0]' is no base64"),
        ("/api/generate", {"images": ["aGk="]}, "'images' reach a model through its chat template alone"),
        ("/api/generate", {"system": "Be brief."}, "'system' has no place in a 'raw' prompt"),
    ],
)
def test_the_unknown_is_refused_in_ollama_s_shape(
    served: Served, path: str, fields: dict[str, Any], words: str
) -> None:
    assert_refused(served.post(path, (CHAT if path == "/api/chat" else PROMPT) | fields), 400, words)


def test_json_comes_under_any_type_but_not_from_pages(served: Served) -> None:
    """As `curl -d` sends it, and as another site's page could without a preflight request."""
    content = json.dumps(PROMPT | {"stream": False}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert served.request("POST", "/api/generate", content=content, headers=form).status_code == 200
    assert served.request("POST", "/api/generate", content=content).status_code == 200
    for header in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        response = served.request("POST", "/api/generate", content=content, headers=form | header)
        assert_refused(response, 415, "Content-Type")
    assert served.request("POST", "/v1/completions", content=content, headers=form).status_code == 415


def test_the_guard_holds_for_these_paths_too(async_engine: AsyncEngine) -> None:
    key = b"0123456789abcdef"
    guarded = Served(async_engine, ServerSettings("demo", api_keys=(key,)))
    for path in ("/api/tags", "/api/version", "/api/ps"):
        assert_refused(guarded.get(path), 401, "API key")
    assert_refused(guarded.post("/api/chat", CHAT), 401, "API key")
    headers = {"Authorization": f"Bearer {key.decode()}"}
    assert guarded.get("/api/tags", headers=headers).status_code == 200
    foreign = Served(async_engine, ServerSettings("demo"), host="evil.example")
    assert_refused(foreign.get("/api/tags"), 403, "evil.example")


def test_an_error_during_a_stream_is_its_last_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from reader_edge.server.api_error import ApiError
    from reader_edge.server.completion import CompletionRun

    pieces = CompletionRun.pieces

    async def broken(answers: CompletionRun) -> Any:
        async for piece in pieces(answers):
            yield piece
            raise ApiError(504, "The answer takes longer than it may here: ask for fewer tokens.")

    monkeypatch.setattr(CompletionRun, "pieces", broken)
    *_, last = lines(served, "/api/chat", CHAT)
    assert last == {"error": "The answer takes longer than it may here: ask for fewer tokens."}
