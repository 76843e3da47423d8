"""The history on disk: what was appended is read back, whoever else writes, and whenever a writer is killed."""

import itertools
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.drafting.sources.history_file import HEADER_BYTES, HistoryFile, erase_history
from reader_edge_runtime.errors import HistoryError

FINGERPRINT = bytes(range(32))
TEXTS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), max_size=60)


def history(path: Path, max_tokens: int = 1000, fingerprint: bytes = FINGERPRINT) -> HistoryFile:
    return HistoryFile(path, fingerprint, max_tokens, vocab_size=100)


def append_all(file: HistoryFile, texts: list[list[int]]) -> None:
    for text in texts:
        file.append(np.array(text, np.int32))


def contents(file: HistoryFile) -> list[list[int]]:
    return [text.tolist() for text in file.read()]


@given(texts=TEXTS, max_tokens=st.integers(0, 200))
def test_texts_used_last_are_read_back(
    texts: list[list[int]], max_tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("history") / "file"
    append_all(history(path, max_tokens), texts)
    wanted: list[list[int]] = []
    for text in reversed([text[max(0, len(text) - max_tokens) :] for text in texts]):
        if text in wanted:
            continue
        if sum(map(len, wanted)) + len(text) > max_tokens:
            break
        if text:
            wanted.insert(0, text)
    assert contents(history(path, max_tokens)) == wanted


def test_file_stays_within_twice_its_bound(tmp_path: Path) -> None:
    file = history(tmp_path / "file", max_tokens=2000)
    append_all(file, [[i % 100] * 50 for i in range(200)])
    assert (tmp_path / "file").stat().st_size <= HEADER_BYTES + 2 * 4 * 2000
    assert contents(file)[-1] == [99] * 50
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("num_lost", [1, 5, 11, 12, 19])
def test_unfinished_record_is_left_out_and_then_cut_off(tmp_path: Path, num_lost: int) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1, 2, 3], [4, 5, 6]])
    path.write_bytes(path.read_bytes()[:-num_lost])
    assert contents(history(path)) == [[1, 2, 3]]
    append_all(history(path), [[7]])
    assert contents(history(path)) == [[1, 2, 3], [7]]


def test_flipped_bit_ends_the_history_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1], [2], [3]])
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 12 + 8] ^= 1
    path.write_bytes(bytes(data))
    assert contents(history(path)) == [[1]]


def test_huge_length_in_a_record_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    path.write_bytes(path.read_bytes() + b"\xff" * 8)
    assert contents(history(path)) == [[1]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: b"x" + data[1:], "not a history file"),
        (lambda data: data[:20], "not a history file"),
        (lambda data: data[:8] + b"\x02" + data[9:], "format version 2"),
        (lambda data: data[:12] + b"\xff" + data[13:], "another tokenizer"),
    ],
)
def test_foreign_file_is_refused_and_left_alone(tmp_path: Path, change: object, sentence: str) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    assert callable(change)
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    for use in (lambda: history(path).read(), lambda: append_all(history(path), [[2]])):
        with pytest.raises(HistoryError, match=sentence):
            use()
    assert path.read_bytes() == before


def test_token_ids_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    HistoryFile(tmp_path / "file", FINGERPRINT, 100, vocab_size=1000).append(np.array([500], np.int32))
    with pytest.raises(HistoryError, match="does not have"):
        history(tmp_path / "file").read()


def test_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    with pytest.raises(HistoryError, match="cannot be used"):
        history(tmp_path / "blocked" / "file").append(np.array([1], np.int32))


def test_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="There is no folder"):
        history(tmp_path / "folder" / "file").read()
    assert not (tmp_path / "folder").exists()


def test_a_file_cut_anywhere_reads_as_what_was_whole_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [[1, 2, 3], [4], [5, 6]]
    append_all(history(path), texts)
    data = path.read_bytes()
    for num_bytes in range(HEADER_BYTES, len(data) + 1):
        path.write_bytes(data[:num_bytes])
        found = contents(history(path))
        assert found == texts[: len(found)]
    path.write_bytes(data[: HEADER_BYTES // 2])
    with pytest.raises(HistoryError, match="not a history file"):
        history(path).read()


def _write_for_ever(path: str) -> None:
    file = history(Path(path), max_tokens=300)
    for number in itertools.count():
        append_all(file, [[number % 100] * (1 + number % 9)])


def test_writers_killed_at_any_moment_leave_whole_texts_that_others_add_to(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(str(path),))
    writer.start()
    while len(contents(history(path, max_tokens=300))) < 30:
        assert writer.exitcode is None
    writer.kill()
    writer.join()
    append_all(history(path, max_tokens=300), [[99] * 10])
    texts = contents(history(path, max_tokens=300))
    assert texts[-1] == [99] * 10
    assert len(texts) > 20
    assert all(len(set(text)) == 1 for text in texts)


def test_erased_history_is_gone_and_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    erase_history(path)
    assert not path.exists()
    assert contents(history(path)) == []
    path.write_text("my thesis")
    with pytest.raises(HistoryError, match="left alone"):
        erase_history(path)
    assert path.read_text() == "my thesis"


def _write_many(path: str, number: int) -> None:
    append_all(history(Path(path), max_tokens=3000), [[number, i] * 4 for i in range(40)])


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(tmp_path / "file"), number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    texts = contents(history(tmp_path / "file", max_tokens=3000))
    assert sorted(text[0] for text in texts) == [1] * 40 + [2] * 40
    assert all(text == text[:2] * 4 for text in texts)
