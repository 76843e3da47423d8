"""A history file small enough for tests: its texts appended, read back and rewritten."""

import os
import re
import struct
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources import history_records
from reader_edge_runtime.drafting.sources.history_file import HistoryFile, erase_history
from reader_edge_runtime.drafting.sources.history_records import HEADER_BYTES
from reader_edge_runtime.errors import HistoryError
from tests.fake_target import FakeTarget, make_manifest
from tests.runtime.decoding.planning.planning_cases import cost

FINGERPRINT = bytes(range(32))


def history(path: Path, max_tokens: int = 1000, fingerprint: bytes = FINGERPRINT) -> HistoryFile:
    return HistoryFile(path, fingerprint, max_tokens, vocab_size=100)


def append_all(file: HistoryFile, texts: list[list[int]]) -> None:
    for text in texts:
        file.append(np.array(text, np.int32))


def rewritten() -> None:
    """Wait for the threads that rewrite files."""
    for thread in threading.enumerate():
        if thread.name == "reader-edge history":
            thread.join()


def contents(file: HistoryFile) -> list[list[int]]:
    return [text.tolist() for text in file.read()]


TEXTS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), max_size=60)


@given(texts=TEXTS, max_tokens=st.integers(0, 200))
def test_last_texts_are_read(texts: list[list[int]], max_tokens: int, tmp_path_factory: pytest.TempPathFactory) -> None:
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


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_flipped_bit_costs_its_record_alone_and_one_warning(tmp_path: Path, damaged: int) -> None:
    path = tmp_path / "file"
    texts = [[1, 2, 3, 4], [2, 1, 0, 7], [3]]
    append_all(history(path), texts)
    data = path.read_bytes()
    del texts[damaged]
    for bit in range(8 * 24):
        flipped = bytearray(data)
        flipped[HEADER_BYTES + 24 * damaged + bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.warns(UserWarning, match="is damaged in one place: the past answers there are lost"):
            assert contents(history(path)) == texts
        append_all(history(path), [[4]])
        assert contents(history(path)) == [*texts, [4]]


def test_search_behind_damage_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    num_records = 20_000  # at each of which a record of half the file seems to begin
    path.write_bytes(path.read_bytes() + struct.pack("<II", num_records, 0xFFFFFFFF) * num_records + b"end")
    summed: list[int] = []

    def count_and_sum(data: memoryview) -> int:
        summed.append(len(data))
        return crc32(data)

    monkeypatch.setattr(history_records, "_MAX_SEARCHED_BYTES", 1 << 24)
    monkeypatch.setattr(zlib, "crc32", count_and_sum)
    with pytest.warns(UserWarning, match="is damaged"):
        assert contents(history(path)) == [[1]]
    assert sum(summed) < 2 * (1 << 24) + 3 * num_records * 4


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
    Path(f"{path}.lock").unlink(missing_ok=True)
    for use in (lambda: history(path).read(), lambda: append_all(history(path), [[2]])):
        with pytest.raises(HistoryError, match=sentence):
            use()
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_token_ids_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    HistoryFile(tmp_path / "file", FINGERPRINT, 100, vocab_size=1000).append(np.array([500], np.int32))
    with pytest.raises(HistoryError, match="does not have"):
        history(tmp_path / "file").read()


def test_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    with pytest.raises(HistoryError, match="cannot be used"):
        history(tmp_path / "blocked" / "file").append(np.array([1], np.int32))


@pytest.mark.parametrize("name", ["file.lock", ".file.successor"])
def test_a_folder_in_the_place_of_a_file_beside_it_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(HistoryError, match=re.escape(f"'{tmp_path / name}' cannot be used: ")):
        history(tmp_path / "file").read()


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
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
        append_all(history(path), [[7]])
        assert contents(history(path)) == [*found, [7]]
    path.write_bytes(data[: HEADER_BYTES // 2])
    with pytest.raises(HistoryError, match="not a history file"):
        history(path).read()


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


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_new_files_are_private_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    with FileLock(f"{path}.lock", mode=0o600):
        pass
    assert contents(history(path)) == [[1]]
    assert {mode_of(each) for each in tmp_path.iterdir()} == {0o600}
    for mode in (0o640, 0o400 | 0o200):
        path.chmod(mode)
        history(path)._rewrite()
        assert mode_of(path) == mode


def test_empty_file_becomes_a_history(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o640)
    assert contents(history(tmp_path / "file")) == []
    append_all(history(tmp_path / "file"), [[1]])
    assert contents(history(tmp_path / "file")) == [[1]]
    assert mode_of(tmp_path / "file") == 0o640


def test_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to(target)
    append_all(history(target), [[1]])
    history(link)._rewrite()
    append_all(history(link), [[2]])
    assert contents(history(link)) == contents(history(target)) == [[1], [2]]
    assert [path.name for path in tmp_path.iterdir() if path.is_symlink()] == ["link"]
    assert not list(tmp_path.glob("link.*"))
    erase_history(link)
    assert not target.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "made")
    (tmp_path / "link").symlink_to(tmp_path / "made")
    before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    for path in (tmp_path / "made", tmp_path / "link"):
        file = history(path)
        for use in (file.read, partial(append_all, file, [[2]]), partial(erase_history, path)):
            with pytest.raises(HistoryError, match="is not a regular file"):
                use()
    assert {path.name: path.lstat().st_mode for path in tmp_path.iterdir()} == before


def test_a_link_to_where_nothing_is_makes_no_file_there(tmp_path: Path) -> None:
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("target")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("first", "second", "loop"):
        with pytest.raises(HistoryError, match=r"is a link to '.*', where nothing is: name that file, or another"):
            history(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second", "loop"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
def test_another_users_link_is_not_followed(tmp_path: Path, give_away: Callable[[Path], None]) -> None:
    path, inner, outer = tmp_path / "file", tmp_path / "inner", tmp_path / "outer"
    append_all(history(path), [[1]])
    inner.symlink_to(path)
    outer.symlink_to(inner)
    give_away(inner)
    for use in (history, erase_history):
        with pytest.raises(HistoryError, match="is a link of another user's: name the file that is meant"):
            use(outer)
    assert path.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
@pytest.mark.parametrize("content", [b"", None])
def test_another_users_file_is_left_alone(
    content: bytes | None, tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    path = tmp_path / "file"
    early = history(path)
    append_all(early, [[1, 2, 3]])
    if content is not None:
        path.write_bytes(content)
    before = path.read_bytes()
    give_away(path)
    for use in (history(path).read, partial(append_all, history(path), [[4]]), partial(append_all, early, [[4]])):
        with pytest.raises(HistoryError, match=r"^The history '.*' belongs to another user: `chown` it, or name .*\.$"):
            use()
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o664, 0o666])
def test_a_file_that_others_can_write_is_neither_read_nor_written_to(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1, 2, 3]])
    before = path.read_bytes()
    path.chmod(mode)
    for use in (history(path).read, partial(append_all, history(path), [[4]])):
        with pytest.raises(HistoryError, match="can be written by its group or others: `chmod go-w` it, or name"):
            use()
    assert path.read_bytes() == before
    path.chmod(mode & ~0o022)
    assert contents(history(path)) == [[1, 2, 3]]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("kind", ["readable by others", "another user's", "a hard link", "sound"])
def test_a_successor_of_another_user_is_left_alone(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, successor = tmp_path / "file", tmp_path / ".file.successor"
    append_all(history(path), [[1, 2, 3]])
    successor.touch(0o600)
    if kind == "readable by others":
        successor.chmod(0o644)
    elif kind == "a hard link":
        os.link(successor, tmp_path / "kept")
    elif kind == "another user's":
        fstat, owner = os.fstat, 1 + os.getuid()

        def foreign(number: int) -> os.stat_result:
            found = list(fstat(number))
            is_successor = found[1] == successor.stat().st_ino
            return os.stat_result([*found[:4], owner if is_successor else found[4], *found[5:]])

        monkeypatch.setattr(os, "fstat", foreign)
    append_all(history(path), [[4, 5, 6]])
    assert bool(successor.stat().st_size) == (kind == "sound")
    monkeypatch.undo()
    assert contents(history(path)) == [[1, 2, 3], [4, 5, 6]]


def test_an_answer_too_short_to_be_drafted_is_kept_all_the_same(tmp_path: Path) -> None:
    file = history(tmp_path / "h")
    decoder = Decoder(FakeTarget(make_manifest()), RetrievalDrafter(DraftConfig(), history_file=file), EngineConfig())
    decoder.planner.take(cost(growth=0.1))
    decoder.planner.overheads.start_s = 1.0
    request = decoder.submit([1, 2, 3], GenerationConfig(max_tokens=3))
    decoder.finish(request)
    assert not request.has_drafted
    assert contents(file) == [request.token_ids]
