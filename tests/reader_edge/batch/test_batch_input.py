"""What is no sound input of a batch is refused before anything is answered."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from reader_edge.batch import batch, batch_files
from reader_edge.server.endpoints import PATHS
from tests.reader_edge.batch.batch_files import REQUESTS, Files, assert_refused, request


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "Line 2 of '{given}' is not JSON"),
        ("[" * 100_000, "Line 2 of '{given}' is not JSON"),
        ("\udcff", "Line 2 of '{given}' is not JSON"),
        ("[]", "Line 2 of '{given}' must be an object"),
        ({"custom_id": "a"}, "Line 2 of '{given}' must be an object with body, custom_id, method, url"),
        (request(9) | {"custom_id": 5}, "Line 2 of '{given}' must have a custom_id"),
        (request(9) | {"custom_id": ""}, "Line 2 of '{given}' must have a custom_id"),
        (request(9) | {"method": "GET"}, "Line 2 of '{given}' has the method 'GET'"),
        (request(9, url="/v1/embeddings"), "Line 2 of '{given}' has the url '/v1/embeddings'"),
        (request(9) | {"url": ["/v1/completions"]}, "Line 2 of '{given}' has the url"),
        (request(9) | {"body": None}, "Line 2 of '{given}' must have an object as its body"),
        (request(0), "'{given}' has the custom_id 'request 0' twice"),
        (" " * (4 << 20) + "{}", "Line 2 of '{given}' has more than the 4194304 bytes"),
    ],
)
def test_an_input_that_is_not_sound_is_refused_before_anything_is_answered(
    files: Files, line: object, words: str
) -> None:
    files.write(REQUESTS[0])
    text = line if isinstance(line, str) else json.dumps(line)
    with files.given.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text + "\n")
    assert_refused(files.run("no/such/model"), words.format(given=files.given))
    assert not files.out.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no such file")
def test_a_pipe_is_no_input(files: Files) -> None:
    os.mkfifo(files.given)
    assert_refused(files.run(), f"'{files.given}' is no file")


def test_an_input_that_changes_during_the_work_has_none_answered_twice_and_says_so(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    return batch_files._request(json.dumps(request).encode(), PATHS, "").id


def test_empty_lines_and_a_mark_of_utf_8_are_let_be(files: Files) -> None:
    files.given.write_bytes(b"\xef\xbb\xbf" + json.dumps(REQUESTS[0]).encode() + b"\r\n\n  \n")
    assert files.run().exit_code == 0
    assert list(files.answers()) == ["request 0"]
    files.given.write_bytes(b"\n\n")
    assert_refused(files.run(), f"'{files.given}' holds no requests")
