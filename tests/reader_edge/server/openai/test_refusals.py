"""What a server refuses: always in OpenAI's form, in one sentence, and without harm to others."""

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.api_error import shown_json
from reader_edge.server.authentication import is_loopback, read_api_keys
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.errors import BusyError, UserFileError
from reader_edge_runtime.images.prompt_reader import PromptReader
from reader_edge_runtime.serving.async_engine import AnswerStream
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from tests.reader_edge.server.conftest import LIMIT_S, Served

ANYWHERE = "0.0.0.0"  # noqa: S104 (refused)
KEY = "0123456789abcdef"
NESTED = b'{"model":' + b"[" * 100_000
USER = {"role": "user", "content": "Hi"}


def assert_refused(response: Any, status: int, words: str = "") -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    assert "\n" not in error["message"]
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": None}, "'prompt' is missing, but must be a text, a list of token ids, or a list of such."),
        ({"prompt": []}, "'prompt' is [], but must be a text"),
        ({"prompt": [1, "a"]}, "'prompt' is [1, 'a'], but must be a text"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": [10**12]}, "token id 1000000000000"),
        ({"prompt": "\ud800"}, "not valid Unicode"),
        ({"prompt": "word " * 20_000}, "shorten the prompt"),
        ({"max_tokens": 0}, "'max_tokens' is 0, but must be a whole number of 1 or more, or -1"),
        ({"max_tokens": -2}, "'max_tokens' is -2, but must be a whole number of 1 or more, or -1"),
        ({"max_tokens": "5"}, "whole number"),
        ({"max_tokens": True}, "whole number"),
        ({"temperature": "hot"}, "a number"),
        ({"temperature": -1}, "'temperature' is -1, but must be a number from 0 to 100."),
        ({"temperature": float("nan")}, "is not JSON"),
        ({"temperature": 10**400}, "00..., but must be a number"),
        ({"top_p": -0.1}, "'top_p' is -0.1, but must be a number from 0 to 1."),
        ({"n": 0}, "'n' is 0, but must be a whole number from 1 to 1024."),
        ({"n": 17}, "17 answers together: 1 to 16 are given"),
        ({"n": 10**4299, "prompt": ["a"] * 10}, "whole number"),
        ({"prompt": ["a"] * 17}, "17 answers together: 1 to 16 are given"),
        ({"stop": 3}, "'stop' is 3, but must be a text or a list of at most 16 texts, each of 1 to 1000 characters."),
        ({"stop": ["a"] * 17}, "but must be a text or a list of at most 16 texts, each of 1 to 1000 characters."),
        ({"stop": [""]}, "'stop[0]' is '', but must be a text of 1 to 1000 characters."),
        ({"logit_bias": [1]}, "an object"),
        ({"logit_bias": {"a": 1}}, "'logit_bias' names 'a', but must name tokens by their ids, as {'42': -100} does."),
        ({"logit_bias": {"-1": 1}}, "'logit_bias' names '-1'"),
        ({"logit_bias": {"5": "a"}}, "a number"),
        (
            {"logit_bias": {"99999999": 1}},
            "names token 99999999, but the vocabulary has 6144: name ids from 0 to 6143.",
        ),
        ({"logprobs": 6}, "from 0 to 5"),
        ({"stream": "yes"}, "true or false"),
        ({"stream": True, "temperature": -1}, "'temperature' is -1"),
        ({"stream": True, "prompt": ""}, "prompt is empty"),
        ({"echo": 1}, "'echo' is 1, but must be true or false."),
        ({"suffix": "end"}, "'suffix' is given, but the model here has no"),
        ({"frequency_penalty": 2.5}, "'frequency_penalty' is 2.5, but must be a number from -2 to 2."),
        ({"min_tokens": 5}, "'min_tokens' is 5, which is not supported here: leave it out."),
        ({"early_stopping": True}, "'early_stopping' is true, which is not supported here: leave it out."),
        ({"stop_token_ids": [99999999]}, "names token 99999999, but the vocabulary has 6144: name ids"),
        ({"messages": []}, "'messages' is [], which is not supported here: leave it out."),
        ({"top_n_sigma": 1}, "'top_n_sigma' is 1, which is not supported here: leave it out."),
    ],
)
def test_a_completion_that_cannot_be_is_refused(served: Served, fields: dict[str, object], words: str) -> None:
    body = json.dumps({"model": "demo", "prompt": "# tar"} | fields)
    response = served.request("POST", "/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert_refused(response, 400, words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "at least one"),
        ({"chat_template_kwargs": {"messages": []}}, "'chat_template_kwargs' holds 'messages', which a request has"),
        ({"messages": "Hi"}, "a list of messages"),
        ({"messages": [USER] * 10_001}, "at least one and at most 10000."),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [USER, {"role": "tools", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "'messages[0].content[0].image_url' is missing, but must be an object with 'url', or a text.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com"}]}]},
            "'messages[0].content[0].image_url' is 'https://example.com', but nothing is fetched from there: give the "
            "image as 'data:image/png;base64,...'.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}]}]},
            "'messages[0].content[0].image_url.url' is '/etc/hostname', but nothing is fetched from there",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url"}]}]},
            "'messages[0].content[0].type' is 'video_url', but must be one of 'text', 'image_url'.",
        ),
        ({"messages": [USER | {"audio": {"id": "x"}}]}, "audio' is {'id': 'x'}, which is not supported"),
        ({"prediction": {}}, "'prediction.content' is missing, but must be a text"),
        ({"prediction": {"type": "text", "content": "x"}}, "'prediction.type' is 'text', but must be 'content'."),
        ({"prediction": {"type": "content", "content": 5}}, "'prediction.content' is 5, but must be a text"),
        ({"prediction": "x"}, "an object with 'type' and 'content'"),
        ({"top_logprobs": 2}, "comes with 'logprobs' alone"),
        ({"logprobs": True, "top_logprobs": 21}, "from 0 to 20"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "'max_completion_tokens' is 0"),
    ],
)
def test_a_chat_that_cannot_be_is_refused(served: Served, fields: dict[str, object], words: str) -> None:
    assert_refused(served.post("/v1/chat/completions", {"model": "demo", "messages": [USER]} | fields), 400, words)


@pytest.mark.parametrize("tag", ["", 0, False, [], {}])
def test_only_a_missing_type_stands_for_the_first_kind(served: Served, tag: object) -> None:
    body = {"model": "demo", "messages": [USER], "max_tokens": 1}
    words = f"'response_format.type' is {shown_json(tag)}, but must be one of 'text'"
    assert_refused(served.post("/v1/chat/completions", body | {"response_format": {"type": tag}}), 400, words)
    for form in ({}, {"type": None}):
        assert served.post("/v1/chat/completions", body | {"response_format": form}).status_code == 200


def test_what_asks_for_nothing_special_is_let_be(served: Served) -> None:
    fields = {"user": "me", "metadata": {"a": "b"}, "best_of": 1, "echo": False, "suffix": None}
    fields["frequency_penalty"] = 0.0
    assert served.complete(**fields)["choices"] == served.complete()["choices"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"text"', NESTED, b'{"n": %s}' % (b"1" * 5000), b"\xff\xfe"])
def test_what_is_no_json_object_is_refused(served: Served, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert_refused(served.request("POST", "/v1/completions", content=content, headers=headers), 400, "JSON")


def test_a_page_of_another_site_can_send_nothing_unasked(served: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": kind, "Origin": "http://evil.example"}
        assert_refused(served.request("POST", "/v1/completions", content=b"{}", headers=headers), 415)
    requested = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    response = served.request("OPTIONS", "/v1/completions", headers=requested)
    assert_refused(response, 405)
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_unknown_models_and_places_are_refused(served: Served) -> None:
    assert_refused(served.post("/v1/completions", {"model": "gpt-4", "prompt": "a"}), 404, "ask for 'demo'")
    assert_refused(served.get("/v1/models/gpt-4"), 404)
    assert_refused(served.post("/v1/audio/speech", {}), 404, "There is no POST /v1/audio/speech here")
    assert_refused(served.get("/v1/completions"), 405)
    for path in ("/index.html", "/../etc/passwd", "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fetc%2fpasswd"):
        assert_refused(served.get(path), 404)


def test_a_body_that_is_too_large_or_too_slow_is_refused(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", max_body_bytes=100, max_body_s=0.05))
    assert_refused(served.post("/v1/completions", {"prompt": "a" * 200}), 413, "100 bytes")
    assert "100 bytes" in served.post("/api/generate", {"prompt": "a" * 200}).json()["error"]

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(LIMIT_S)

    response = served.request("POST", "/v1/completions", content=slow(), headers={"Content-Type": "application/json"})
    assert_refused(response, 408, "longer than")


def test_more_than_may_wait_are_refused(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", max_choices=64))
    with async_engine.engine.working():  # so that nobody's answer ends meanwhile
        response = served.post("/v1/completions", {"model": "demo", "prompt": "# tar", "n": 32})
    assert_refused(response, 429, "try again later")
    assert response.headers["retry-after"] == "1"
    served.wait_until_idle()
    assert served.complete()


@pytest.mark.parametrize("is_streamed", [True, False])
def test_choices_are_refused_together(
    is_streamed: bool, async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, num_started = AnswerStream._start, itertools.count()

    async def late(stream: AnswerStream) -> None:
        if next(num_started) == 1:  # while the first is decoded, others take the place of the second
            await asyncio.sleep(0.3)
            raise BusyError("4 requests run or wait already: try again later.")
        await start(stream)

    monkeypatch.setattr(AnswerStream, "_start", late)
    served = Served(async_engine, ServerSettings("demo"))
    body = {"model": "demo", "prompt": "# tar", "n": 2, "max_tokens": 8, "stream": is_streamed}
    assert_refused(served.post("/v1/completions", body), 429, "try again later")
    served.wait_until_idle()


def test_too_many_answers_in_a_form_are_no_matter_of_waiting(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", max_choices=64))
    fields = {"model": "demo", "prompt": "# tar", "max_tokens": 1, "guided_choice": ["yes", "no"]}
    assert_refused(served.post("/v1/completions", fields | {"n": 17}), 400, "17 answers in a form, or with tools,")


@pytest.mark.long
def test_an_answer_that_takes_too_long_is_given_up(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(async_engine, ServerSettings("demo", max_answer_s=0.5))
    step = async_engine.engine.decoder.step

    def slow_step() -> object:
        time.sleep(0.1)
        return step()

    monkeypatch.setattr(async_engine.engine.decoder, "step", slow_step)
    fields = {"model": "demo", "prompt": "# tar", "max_tokens": 900}
    assert_refused(served.post("/v1/completions", fields), 504, "ask for fewer tokens")
    stream = served.post("/v1/completions", fields | {"stream": True})
    assert stream.status_code == 200
    assert stream.text.rstrip().rpartition("\n")[2].startswith('data: {"error": {"message": "The answer takes longer')
    served.wait_until_idle()


def test_a_fault_of_ours_is_shown_without_its_inside(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptReader, "read", lambda reader, prompt, salt: 1 / 0)
    assert_refused(served.post("/v1/completions", {"model": "demo", "prompt": "a"}), 500, "failed to answer")


def test_with_keys_none_but_their_holders_get_in(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", (b"another key of ours", KEY.encode())), "example.com")
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": f"Basic {KEY}"}):
        for path in ("/v1/models", "/metrics", "/nowhere"):
            assert_refused(served.get(path, headers=wrong), 401, "key")
    assert served.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    assert served.get("/health").status_code == 200


def test_without_keys_other_names_of_this_machine_get_nothing(served: Served) -> None:
    for host in ("evil.example", "evil.example:8000", "192.168.1.2", "[::2]:80", ""):
        assert_refused(served.get("/v1/models", headers={"Host": host}), 403)
    for host in ("localhost", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        assert served.get("/v1/models", headers={"Host": host}).status_code == 200


def test_headers_of_any_number_are_bounded_also_where_they_come_at_once(served: Served) -> None:
    assert_refused(served.get("/v1/models", headers={"X": "a" * 20_000}), 431, "16384 bytes")
    assert_refused(served.get("/v1/models", headers={f"X-{number}": "a" for number in range(5000)}), 431)


def test_a_client_that_hangs_up_early_is_no_fault(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    messages: Iterator[MutableMapping[str, Any]] = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return next(messages)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(served.app(scope, receive, send))
    assert sent[0]["status"] == 499
    assert [record.name for record in caplog.records] == ["reader_edge.server.requests"]


def test_a_path_with_a_further_slash_leads_nowhere_else(served: Served) -> None:
    assert_refused(served.post("/v1/completions/", {}), 404, "There is no POST /v1/completions/ here.")
    assert_refused(served.get("/" + "a" * 15_000), 404, "a" * 99 + " here.")


def test_which_hosts_are_this_machine_alone() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")))
    assert not any(map(is_loopback, (ANYWHERE, "::", "", "10.0.0.1", "example.com", "localhost.evil.example")))


def test_keys_that_could_be_guessed_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"\n{KEY}\n  another-key-of-ours \n")
    assert read_api_keys(file) == (KEY.encode(), b"another-key-of-ours")
    weak = ("", "\n\n", "short", f"{KEY}\nshort", "sixteen letters, spaced")
    for content in (*weak, "ключ" * 5, f"{KEY}\t{KEY}", f"{KEY}\0", "k" * 1025):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(UserFileError, match=r"^[^\n]+openssl[^\n]+\.$"):
            read_api_keys(file)
    with pytest.raises(UserFileError, match="cannot be read"):
        read_api_keys(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o777])
def test_keys_that_others_can_read_are_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    file.chmod(mode)
    with pytest.raises(UserFileError, match=r"^'.*keys' may be read by others: `chmod 600` it, and replace .*\.$"):
        read_api_keys(file)
    file.chmod(0o400)
    assert read_api_keys(file) == (KEY.encode(),)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
def test_keys_of_another_users_file_are_refused(tmp_path: Path, give_away: Callable[[Path], None]) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    file.chmod(0o600)
    give_away(file)
    with pytest.raises(UserFileError, match=r"^'.*keys' belongs to another user: `chown` it, and replace .*\.$"):
        read_api_keys(file)


@pytest.mark.parametrize("is_ollama", [False, True])
def test_a_failing_template_has_a_way_out(served: Served, monkeypatch: pytest.MonkeyPatch, is_ollama: bool) -> None:
    template = ChatTemplate("{% bad", {}, path=Path("/home/someone/chat_template.jinja"))
    monkeypatch.setattr(served.engine.engine.tokenizer, "_chat_template", template)
    path = "/api/chat" if is_ollama else "/v1/chat/completions"
    response = served.post(path, {"model": "demo", "messages": [USER]})
    assert response.status_code == 400
    error = response.json()["error"]
    message = error if is_ollama else error["message"]
    assert message.startswith("The model's chat template fails on these messages (line 1: ")
    assert "'/v1/completions'" in message
    assert "someone" not in message
    assert served.complete(prompt="# tar")["choices"]
