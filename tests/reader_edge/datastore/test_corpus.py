"""Corpora: documents of text, JSON lines and Parquet are read whole; what cannot be read is one sentence."""

import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from reader_edge.datastore.corpus import read_pieces
from tests.reader_edge.datastore.conftest import Command, failed


def texts(path: Path, file_format: str | None = None, field: str = "text") -> list[str]:
    """The documents of a corpus file."""
    documents = [""]
    for piece in read_pieces(path, file_format, field):
        documents[-1] += piece.text
        if piece.ends_document:
            documents.append("")
    assert documents.pop() == ""
    return [document for document in documents if document]


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("", []),
        ("one\ntwo", ["one\ntwo"]),
        ("\x1ea/path\nfirst\x1eb/path\nsecond\n", ["first", "second\n"]),
        ("before\x1ename\nafter", ["before", "after"]),
        ("\x1ename without text\x1e\nempty name", ["empty name"]),
    ],
)
def test_record_separators_begin_documents(tmp_path: Path, text: str, documents: list[str]) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(text, encoding="utf-8")
    assert texts(path) == documents


def test_long_texts_are_read_in_pieces_that_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.datastore.corpus._READ_BYTES", 7)
    monkeypatch.setattr("reader_edge.datastore.corpus._PIECE", 16)
    path = tmp_path / "corpus.txt"
    documents = ["é" * 100, "line of text\n" * 30, "word " * 50, "\N{GRINNING FACE}x" * 40]
    path.write_text("".join(f"\x1ename {number}\n{text}" for number, text in enumerate(documents)), encoding="utf-8")
    assert texts(path) == documents
    pieces = list(read_pieces(path, "text", "text"))
    assert max(len(piece.text) for piece in pieces) <= 32
    assert [piece.read_share for piece in pieces] == sorted(piece.read_share for piece in pieces)


def test_jsonl_takes_a_field_of_every_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "a", "body": "b"}\n\n{"text": "c", "body": "d"}\n', encoding="utf-8")
    assert texts(path) == ["a", "c"]
    assert texts(path, field="body") == ["b", "d"]
    assert texts(path, "text") == [path.read_text(encoding="utf-8")]


def test_parquet_takes_a_column(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", None, "b" * 200_000], "number": [1, 2, 3]}), path)
    assert texts(path) == ["a", "b" * 200_000]


def test_an_endless_corpus_is_refused(command: Command, tmp_path: Path) -> None:
    sentence = "'/dev/zero' is not a regular file: give files of text."
    out = ["-o", tmp_path / "new.ds", "--max-memory", "401MB"]
    assert failed(command("build", "/dev/zero", *out)) == sentence


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.txt", b"fine\n\xff", "is not UTF-8 text (byte 5)"),
        ("a.txt", "cut é".encode()[:-1], "is not UTF-8 text (byte 4)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}', "Line 2 of"),
        ("a.jsonl", b"[" * 100_000, "Line 1 of"),
        ("a.jsonl", b"\xff\n", "Line 1 of"),
        ("a.jsonl", b'{"text": "\\ud800"}', "half of a surrogate pair"),
        ("a.parquet", b"PAR1 not really", "is not a readable Parquet file"),
        ("a.txt", b"", "holds no token"),
    ],
)
def test_broken_corpora_are_refused(command: Command, tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert sentence in failed(command("build", path, "-o", tmp_path / "new.ds"))
    assert not (tmp_path / "new.ds").exists()


def test_a_missing_or_numeric_column_is_shown(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    parquet.write_table(pyarrow.table({"number": [1, 2, 3]}), path)
    assert 'no column "text"' in failed(command("build", path, "-o", tmp_path / "new.ds"))
    assert "is not text" in failed(command("build", path, "-o", tmp_path / "new.ds", "--field", "number"))


def test_without_pyarrow_parquet_tells_what_to_install(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "corpus.parquet"
    path.write_bytes(b"PAR1")
    assert "install it with pip install pyarrow" in failed(command("build", path, "-o", tmp_path / "new.ds"))
