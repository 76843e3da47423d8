"""Batches: read, resumed, refused, and answered as one request each would be."""

import json
import os
import re
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reader_edge.batch import batch, batch_files
from reader_edge.cli import main
from reader_edge_runtime import Engine, GenerationConfig
from tests.conftest import ROOT
from tests.reader_edge.batch.conftest import REQUESTS, Files, assert_refused, request
from tests.reader_edge.package_copy import PackageCopy
from tests.wrong_fields import assert_each_is_named


def test_each_request_gets_the_answer_of_the_engine_in_openai_s_form(answered: Files, engine: Engine) -> None:
    texts = answered.texts()
    for number in range(12):
        expected = engine.generate(f"# tar {number}", GenerationConfig(max_tokens=10 + number))
        assert texts[f"request {number}"] == expected.text
    line = json.loads(answered.out.read_text().splitlines()[0])
    assert line.keys() == {"id", "custom_id", "response", "error"}
    assert line["response"].keys() == {"status_code", "request_id", "body"}
    assert (line["error"], line["response"]["status_code"]) == (None, 200)
    assert line["response"]["body"]["usage"]["completion_tokens"] == 10 + int(line["custom_id"].split()[1])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_alone(files: Files, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: is_terminal)
    files.write(*REQUESTS[:3])
    result = files.run()
    assert (result.exit_code, result.stdout) == (0, "")
    if is_terminal:
        assert re.search(r"Requests.*3/3", result.stderr)
        assert result.stderr.endswith("\x1b[2K")  # gone in the end
    else:
        assert result.stderr == ""


def test_numbers_are_read_as_the_server_reads_them(files: Files) -> None:
    files.write(request(0, max_tokens=3.0, seed=5.0))
    assert files.run().exit_code == 0
    assert files.answers()["request 0"]["body"]["usage"]["completion_tokens"] == 3


def test_a_body_means_what_it_means_to_the_server(files: Files, chat_package: PackageCopy) -> None:
    messages = [{"role": "user", "content": "What is tar?"}]
    chat = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions"}
    sent = {"model": "demo", "temperature": 0, "max_tokens": 5}
    response = {"model": "demo", "temperature": 0, "max_output_tokens": 5, "input": "What is tar?"}
    files.write(
        {**chat, "body": sent | {"messages": messages, "n": 2}},
        {"custom_id": "response", "method": "POST", "url": "/v1/responses", "body": response},
        request(1, temperature=-1),
        request(2, made_up=1),
        request(3, stream=True),
        request(4, model="gpt-4"),
        request(5, max_tokens=0),
        *(request(number, max_tokens=sent) for number, sent in ((6, -1), (7, 32_000), (8, None))),
    )
    result = files.run(str(chat_package.folder), "-n", "12")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"5 requests were refused: '{files.out}' says why.\n"
    assert files.run("no/such/model").stderr == result.stderr  # the same again where nothing is left
    answers = files.answers()
    assert len(answers["chat"]["body"]["choices"]) == 2
    text = answers["chat"]["body"]["choices"][0]["message"]["content"]
    assert answers["response"]["body"]["output"][0]["content"][0]["text"] == text
    refused = {name: answers[f"request {name}"] for name in range(1, 6)}
    assert [each["status_code"] for each in refused.values()] == [400, 400, 400, 404, 400]
    assert [each["body"]["error"]["message"] for each in refused.values()] == [
        "'temperature' is -1, but must be a number from 0 to 100.",
        "There is no field 'made_up': leave it out.",
        "'stream' has no place here: leave it out.",
        "There is no model 'gpt-4' here: ask for 'demo'.",
        "'max_tokens' is 0, but must be a whole number of 1 or more, or -1 for as many as there may be.",
    ]
    shown = [answers[f"request {number}"]["body"] for number in (6, 7, 8)]
    assert [each["usage"]["completion_tokens"] for each in shown] == [12, 12, 12]
    assert {each["choices"][0]["finish_reason"] for each in shown} == {"length"}


def test_a_draft_model_is_taken_as_elsewhere(files: Files) -> None:
    files.write(*REQUESTS)
    result = files.run("--draft-model", str(ROOT / "models/demo/package"))
    assert result.exit_code == 1
    assert "is the very model that it would draft for" in result.stderr


def test_a_cluster_without_its_library_is_one_sentence(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "ray" else found(name))
    files.write(*REQUESTS[:1])
    assert_refused(files.run("--ray", "127.0.0.1:6379"), "A Ray cluster needs ray, which is missing: pip install")


def test_a_model_that_is_none_leaves_no_output(files: Files) -> None:
    files.write(*REQUESTS[:1])
    result = CliRunner().invoke(main, ["batch", str(files.given), str(files.out), "none-such"])
    assert result.exit_code == 2
    assert not files.out.exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "Line 2 of '{given}' is not JSON"),
        ("[" * 100_000, "Line 2 of '{given}' is not JSON"),
        ("\udcff", "Line 2 of '{given}' is not JSON"),
        ("[]", "Line 2 of '{given}' is unusable (expected object, got array): a line is an object with a custom_id"),
        (request(9) | {"method": "GET"}, "Line 2 of '{given}' has an unusable method ('GET'): a line is an object"),
        (request(9, url="/v1/embeddings"), "Line 2 of '{given}' has an unusable url ('/v1/embeddings'): a line is"),
        (request(0), "'{given}' has the custom_id 'request 0' twice"),
        (" " * (4 << 20) + "{}", "Line 2 of '{given}' has more than the 4194304 bytes"),
    ],
)
def test_an_unsound_input_is_refused_before_any_answer(files: Files, line: object, words: str) -> None:
    files.write(REQUESTS[0])
    text = line if isinstance(line, str) else json.dumps(line)
    with files.given.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text + "\n")
    assert_refused(files.run("no/such/model"), words.format(given=files.given))
    assert not files.out.exists()


def test_whatever_is_wrong_with_a_line_is_named() -> None:
    assert_each_is_named(batch_files.RequestLine, {**request(9), "body": {}})
    assert_each_is_named(batch_files.AnswerLine, {"id": "a", "custom_id": "b", "response": {"status_code": 200}})


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no such file")
def test_a_pipe_is_no_input(files: Files) -> None:
    os.mkfifo(files.given)
    assert_refused(files.run(), f"'{files.given}' is no file")


def test_an_input_that_changes_meanwhile_is_reported(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(*REQUESTS[:3])
    opened = batch.open_batch

    def change(given: Path, out: Path) -> Any:
        made = opened(given, out)
        files.write(REQUESTS[0], REQUESTS[0], request(1, prompt="# git"), REQUESTS[5], REQUESTS[2])
        return made

    monkeypatch.setattr(batch, "count_requests", lambda *_: {r["custom_id"]: batch_id(r) for r in REQUESTS[:3]})
    monkeypatch.setattr(batch, "open_batch", change)
    assert_refused(files.run(), "The input changed meanwhile")
    assert sorted(files.answers()) == ["request 0", "request 2"]


def batch_id(request: dict[str, object]) -> str:
    return batch_files._request(json.dumps(request).encode(), "").id


def test_empty_lines_and_a_mark_of_utf_8_are_let_be(files: Files) -> None:
    files.given.write_bytes(b"\xef\xbb\xbf" + json.dumps(REQUESTS[0]).encode() + b"\r\n\n  \n")
    assert files.run().exit_code == 0
    assert list(files.answers()) == ["request 0"]
    files.given.write_bytes(b"\n\n")
    assert_refused(files.run(), f"'{files.given}' holds no requests")
