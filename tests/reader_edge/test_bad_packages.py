"""Spoilt packages, and files with a byte order mark."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from click.testing import CliRunner
from tokenizers.models import WordLevel

from reader_edge.batch.batch_files import count_requests
from reader_edge.bench.recording import read_recording
from reader_edge.chat.prompt_input import PromptInput
from reader_edge.cli import main
from reader_edge.datastore.corpus import read_pieces
from reader_edge.prompts import read_prompts
from reader_edge.remote.remote_server import read_key
from reader_edge.server.authentication import read_api_keys
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.folder_tokenizer import read_template
from reader_edge_export.texts.text_set import TextSet
from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.package import pipeline_file
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted import untrusted_json
from reader_edge_series.tables.csv_text import check_first_lines, check_no_row_is_empty
from reader_edge_series.tables.table import read_table
from tests.reader_edge.package_copy import PackageCopy
from tests.runtime.text.text_cases import byte_level_tokenizer


def _truncate(package: PackageCopy) -> None:
    path = package.folder / "model.onnx.data"
    path.write_bytes(path.read_bytes()[:-1])


def _flip_bit(package: PackageCopy) -> None:
    path = package.folder / "model.onnx.data"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _lose_file(package: PackageCopy) -> None:
    (package.folder / "model.onnx").unlink()


def _lose_manifest(package: PackageCopy) -> None:
    (package.folder / "reader_edge.json").unlink()


def _break_manifest(package: PackageCopy) -> None:
    (package.folder / "reader_edge.json").write_text('{"format_version":')


def _take_newer_format(package: PackageCopy) -> None:
    package.change_manifest(format_version=99)


def _point_outside(package: PackageCopy) -> None:
    files = package.read_manifest()["files"]
    package.change_manifest(files=files | {"../secret": {"num_bytes": 1, "sha256": "0" * 64}})


def _link_nowhere(package: PackageCopy) -> None:
    path = package.folder / "tokenizer.json"
    path.unlink()
    path.symlink_to("elsewhere.json")


def _take_larger_tokenizer(package: PackageCopy) -> None:
    num_tokens = package.read_manifest()["vocab_size"] + 1
    tokenizer = tokenizers.Tokenizer(WordLevel({str(i): i for i in range(num_tokens)}))
    package.write_file("tokenizer.json", tokenizer.to_str().encode())


def _take_no_tokenizer(package: PackageCopy) -> None:
    package.write_file("tokenizer.json", b"{}")


def _take_no_graph(package: PackageCopy) -> None:
    package.write_file("model.onnx", b"not a graph")


def _claim_more_layers(package: PackageCopy) -> None:
    package.change_manifest(num_layers=package.read_manifest()["num_layers"] + 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_truncate, "bytes instead of"),
        (_flip_bit, "differs from its checksum"),
        (_lose_file, "is missing"),
        (_lose_manifest, "it has neither reader_edge.json"),
        (_break_manifest, "is not valid JSON"),
        (_take_newer_format, "format version 99"),
        (_point_outside, "an unusable name in files ('../secret')"),
        (_link_nowhere, "is a link to 'elsewhere.json', where nothing is"),
        (_take_larger_tokenizer, "it belongs to another model"),
        (_take_no_tokenizer, "is not a readable tokenizer"),
        (_take_no_graph, "is not an ONNX model"),
        (_claim_more_layers, "differ from the manifest"),
    ],
)
def test_a_spoilt_package_is_one_sentence(
    runner: CliRunner, package: PackageCopy, spoil: Callable[[PackageCopy], None], words: str
) -> None:
    spoil(package)
    result = runner.invoke(main, ["run", str(package.folder), "-p", "# tar"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


@pytest.mark.parametrize("command", ["run", "verify", "info"])
def test_a_folder_that_is_missing_or_empty_is_one_sentence(runner: CliRunner, tmp_path: Path, command: str) -> None:
    missing = runner.invoke(main, [command, str(tmp_path / "missing")], input="# tar")
    assert missing.exit_code == 2
    assert missing.stderr.startswith("Error: There is nothing at '")
    (tmp_path / "empty").mkdir()
    empty = runner.invoke(main, [command, str(tmp_path / "empty")], input="# tar")
    assert empty.exit_code == 1
    assert "is no model: it has neither reader_edge.json (a package) nor config.json (a Hugging" in empty.stderr


@pytest.mark.long
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_package_of_links_answers(
    runner: CliRunner, package: PackageCopy, tmp_path: Path, is_read_only: bool
) -> None:
    plain = runner.invoke(main, ["run", str(package.folder), "-p", "# tar", "-n", "4"])
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(package.folder.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
    if is_read_only:
        snapshot.chmod(0o500)
    linked = runner.invoke(main, ["run", str(snapshot), "-p", "# tar", "-n", "4"])
    assert (linked.exit_code, linked.stdout) == (0, plain.stdout)
    assert plain.stdout


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("adapter_config.json", "holds an adapter"),
        ("one.gguf", "holds GGUF files (one.gguf)"),
        ("snapshots/0123/config.json", "is the hub cache's folder of a model"),
        ("config.json", "cannot be exported"),
    ],
)
def test_folders_of_other_kinds_are_named_so(runner: CliRunner, tmp_path: Path, file: str, words: str) -> None:
    path = tmp_path / "folder" / file
    path.parent.mkdir(parents=True)
    path.write_text('{"model_type": "mamba"}')
    result = runner.invoke(main, ["run", str(tmp_path / "folder"), "-p", "# tar"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert words in result.stderr


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
    "a batch": ("a.jsonl", json.dumps(BATCH), count_requests),
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
