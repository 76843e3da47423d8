"""A byte-order mark at the head of a file or a pipe is no part of its text, whichever reader takes it."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reader_edge.batch.batch_files import count_requests
from reader_edge.bench.recording import read_recording
from reader_edge.chat.prompt_input import PromptInput
from reader_edge.datastore.corpus import read_pieces
from reader_edge.prompts import read_prompts
from reader_edge.remote.remote_server import read_key
from reader_edge.server.guard import read_api_keys
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.folder_tokenizer import _read_template as read_template
from reader_edge_export.texts.text_set import TextSet
from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.package import pipeline_file
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted import untrusted_json
from reader_edge_series.tables.csv_text import check_first_lines, check_no_row_is_empty
from reader_edge_series.tables.table import read_table
from tests.runtime.text.text_cases import byte_level_tokenizer

MARK = b"\xef\xbb\xbf"
KEY = "0123456789abcdef" * 4
BATCH = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
RECORDED = {"task": "a", "turns": [{"input": "ab", "output": "c"}]}


def series(path: Path) -> Any:
    check_first_lines(path)
    check_no_row_is_empty(path)
    return {name: values.tolist() for name, values in read_table(path, None, ()).series.items()}


def encoded(path: Path) -> list[int]:
    return Tokenizer.from_file(path).encode("ab")


READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "prompts": ("a.txt", "one\ntwo\n", lambda path: [each.turns for each in read_prompts(path)]),
    "JSON prompts": ("a.jsonl", '{"prompt": "one"}\n', lambda path: [each.turns for each in read_prompts(path)]),
    "a text": ("a.txt", "one\ntwo\n", lambda path: list(read_pieces(path, None, "text"))),
    "JSON lines": ("a.jsonl", '{"text": "one"}\n', lambda path: [p.text for p in read_pieces(path, None, "text")]),
    "an empty first line": ("a.jsonl", '\n{"text": "one"}\n', lambda path: next(read_pieces(path, None, "text")).text),
    "a batch": ("a.jsonl", json.dumps(BATCH), lambda path: count_requests(path, ["/v1/completions"])),
    "a recording": (
        "a.jsonl",
        json.dumps(RECORDED),
        lambda path: read_recording(path, Tokenizer(byte_level_tokenizer())),
    ),
    "keys of a server": ("a.key", f"{KEY}\n{KEY}\n", read_api_keys),
    "a key": ("a.key", f"{KEY}\n", read_key),
    "a calibration text": ("a.txt", "one two", lambda path: TextSet.read(path).fingerprint()),
    "a template": ("a.jinja", "{{ messages[0].content }}", read_template),
    "a package's template": ("a.jinja", "{{ messages }}", lambda path: ChatTemplate.open(path, {}).source),
    "a tokenizer": ("tokenizer.json", byte_level_tokenizer().to_str(), encoded),
    "a config": ("config.json", '{"a": 1}', read_json),
    "a manifest": ("a.json", '{"a": 1}', lambda path: untrusted_json.read_json(path, UserFileError, "", 99)),
    "a table": ("a.csv", '"day","b"\n1,2\n3,4\n5,6\n', series),
}


TEXTS = ("prompts", "JSON prompts", "a text", "a recording", "a calibration text", "a template", "a package's template")


@pytest.mark.parametrize(("name", "num_marks"), [*((name, 1) for name in READERS), *((name, 3) for name in TEXTS)])
def test_marks_before_a_text_are_no_part_of_it(name: str, num_marks: int, tmp_path: Path) -> None:
    file_name, text, read = READERS[name]
    path = tmp_path / file_name
    path.touch(0o600)  # as keys must be
    path.write_bytes(text.encode())
    expected = read(path)
    path.write_bytes(MARK * num_marks + text.encode())
    found = read(path)
    if name == "a text":  # whose pieces say how much was read
        assert [each.text for each in found] == [each.text for each in expected]
    else:
        assert found == expected


@pytest.mark.parametrize("num_marks", [1, 3])
def test_marks_before_a_piped_prompt_are_no_part_of_it(num_marks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.BytesIO(MARK * num_marks + b"Hi \xef\xbb\xbf\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=piped, isatty=bool))
    assert PromptInput(None, None, None, False, {}).read() == "Hi \ufeff"


def test_a_mark_before_a_pipelines_key_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.key"
    path.write_bytes(MARK + KEY.encode())
    path.chmod(0o600)
    assert pipeline_file.read_key(path) == bytes.fromhex(KEY)
