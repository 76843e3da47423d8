"""Fields that change no answer: taken, counted and shown; refused by a strict server."""

import json
import logging

import pytest

from reader_edge.server.ignored_fields import IGNORED_HEADER
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.conftest import RequestLines, Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

CHAT = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hi", "cache_control": {}}], "max_tokens": 2}


def counts(served: Served) -> dict[str, float]:
    """Requests with a field without effect, by its name."""
    begin = 'reader_edge_ignored_fields_total{name="'
    lines = [line.removeprefix(begin) for line in served.get("/metrics").text.splitlines() if line.startswith(begin)]
    return {line.partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_fields_without_effect_are_shown_to_the_client_and_counted_by_name(served: Served) -> None:
    for _ in range(2):
        sent = {"user": "me", "verbosity": "low", "made_up": 1, "tags": None, "stream_options": {"newer": True}}
        answer = served.post(CHAT, BODY | sent)
        assert answer.status_code == 200, answer.text
        assert json.loads(answer.headers[IGNORED_HEADER]) == ["user", "verbosity", "cache_control", "made_up", "newer"]
    assert counts(served) == {"user": 2, "verbosity": 2, "cache_control": 2, "other": 2}
    streamed = served.post(CHAT, BODY | {"stream": True, "made_up": 1})
    assert json.loads(streamed.headers[IGNORED_HEADER]) == ["cache_control", "made_up"]
    plain = served.post("/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 1})
    assert IGNORED_HEADER not in plain.headers


def test_unknown_fields_are_bounded_in_all_that_tells_of_them(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    names = {"x" * 300: 1, "half \ud800\r\nX-Evil: 1": 1, **{f"x{number}": 1 for number in range(1000)}}
    content = json.dumps(BODY | names)
    answer = served.request("POST", CHAT, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert "X-Evil" not in answer.headers
    assert len(answer.headers[IGNORED_HEADER]) < 1024
    assert counts(served) == {"other": 1, "cache_control": 1}
    assert len([each for each in caplog.records if "unknown here" in each.getMessage()]) <= 16


def test_the_log_names_an_unknown_field_once_and_nothing_that_is_no_name(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            served.post(CHAT, BODY | {"made_up": 1, "a secret: 1234": 1, "line\nbreak": 1})
    named = [each.getMessage() for each in caplog.records if each.name == "reader_edge.server.ignored_fields"]
    assert named == ["Requests have a field 'made_up', which is unknown here: it is ignored."]
    assert "1234" not in caplog.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"user": "me"}, "'user' has no effect here, and this server refuses such fields: leave it out."),
        ({"made_up": 1}, "There is no field 'made_up': leave it out."),
        ({"stream_options": {"newer": 1}}, "There is no field 'stream_options.newer': leave it out."),
        ({"half a character \ud800": 1}, "There is no field 'half"),
    ],
)
def test_a_strict_server_refuses_them(async_engine: AsyncEngine, fields: dict[str, object], words: str) -> None:
    strict = Served(async_engine, ServerSettings("demo", refused_fields="all"))
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert strict.post(CHAT, body | {"user": None}).status_code == 200
    content = json.dumps(body | fields)
    response = strict.request("POST", CHAT, content=content, headers={"Content-Type": "application/json"})
    assert_refused(response, 400, words)


def test_an_unknown_name_is_in_no_line_of_a_refusal(
    async_engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    lines = RequestLines(caplog)
    strict = Served(async_engine, ServerSettings("demo", refused_fields="all"))
    strict.post(CHAT, {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "the-word": 1})
    assert lines.only()["error"] == "There is no field of this name: leave it out."


@pytest.mark.parametrize("name", ["grammar", "max_output_tokens", "reasoning_format", "images"])
def test_what_other_servers_would_answer_otherwise_for_is_refused_by_name(served: Served, name: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi", name: "a"}]} if name == "images" else BODY
    refused = served.post(CHAT, body if name == "images" else body | {name: "a"})
    place = f"messages[0].{name}" if name == "images" else name
    assert_refused(refused, 400, f"'{place}' is 'a', which is not supported here: leave it out.")
