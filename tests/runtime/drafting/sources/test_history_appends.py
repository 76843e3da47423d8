"""An answer appended to the history stays: beside other writers, while it is rewritten, and when a writer dies."""

import multiprocessing
import os
import signal
from contextlib import suppress
from io import FileIO
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from filelock import FileLock

from reader_edge_runtime.drafting.sources import history_file, history_records
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.history_records import HEADER_BYTES
from reader_edge_runtime.errors import HistoryError
from tests.runtime.drafting.sources.test_history_file import append_all, contents, history, rewritten
from tests.small_disk import small_disk


def test_file_stays_within_twice_its_bound(tmp_path: Path) -> None:
    file = history(tmp_path / "file", max_tokens=2000)
    for number in range(200):
        append_all(file, [[number % 100] * 50])
        rewritten()
        assert (tmp_path / "file").stat().st_size <= HEADER_BYTES + 2 * 4 * 2000
    assert contents(file)[-1] == [99] * 50
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "file.lock"}


def _write_many(path: str, number: int) -> None:
    file = history(Path(path), max_tokens=700)
    for i in range(40):
        append_all(file, [[number, i] * 4] * 20)


@pytest.mark.long
def test_two_processes_lose_nothing_though_both_rewrite_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(path), number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    texts = contents(history(path, max_tokens=3000))
    assert sorted(texts) == sorted([number, i] * 4 for number in (1, 2) for i in range(40))
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "file.lock"}


def test_other_process_holding_the_lock_keeps_no_answer_waiting(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = history(path, max_tokens=1000)
    with FileLock(f"{path}.lock"):
        append_all(file, [[1] * 500, *[[2] * 500] * 10])  # so many that the file wants to be rewritten
        assert path.stat().st_size == HEADER_BYTES + 11 * (8 + 4 * 500)
    rewritten()
    assert path.stat().st_size == HEADER_BYTES + 2 * (8 + 4 * 500)
    assert contents(file) == [[1] * 500, [2] * 500]


def test_a_rewrite_that_fails_is_an_error_of_the_next_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "_LOCK_SECONDS", 0)
    with FileLock(tmp_path / "file.lock"):
        file = history(tmp_path / "file", max_tokens=1000)
        append_all(file, [[1] * 500] * 5)
        rewritten()
    with pytest.raises(HistoryError, match="is locked by another process"):
        append_all(file, [[2]])


@pytest.mark.parametrize("is_early", [True, False])
def test_an_answer_during_a_rewrite_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_early: bool) -> None:
    path = tmp_path / "file"
    other = history(path)
    read = HistoryFile._records

    def read_while_others_write(file: HistoryFile) -> history_records.Records:
        if is_early:
            append_all(other, [[7]])
        records = read(file)
        append_all(other, [[8]])
        return records

    append_all(other, [[1], [2]])
    with monkeypatch.context() as patch:
        patch.setattr(HistoryFile, "_records", read_while_others_write)
        history(path)._rewrite()
    assert contents(other) == [[1], [2], *[[7]] * is_early, [8]]


def test_an_answer_to_a_replaced_file_is_in_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    write = HistoryFile._write

    def write_when_replaced(file: HistoryFile, opened: FileIO, data: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(HistoryFile, "_write", write)
            if not replaced:
                replaced.append(True)
                history(path)._rewrite()
        write(file, opened, data)

    replaced: list[bool] = []
    monkeypatch.setattr(HistoryFile, "_write", write_when_replaced)
    append_all(history(path), [[2]])
    assert contents(history(path)) == [[1], [2]]


def test_an_answer_to_an_erased_file_is_in_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    write = HistoryFile._write

    def write_when_erased(file: HistoryFile, opened: FileIO, data: bytes) -> int:
        if not erased:
            erased.append(path)
            path.unlink()
        return write(file, opened, data)

    erased: list[Path] = []
    monkeypatch.setattr(HistoryFile, "_write", write_when_erased)
    append_all(history(path), [[2]])
    assert contents(history(path)) == [[2]]


def _append_until_killed(path: str, dies_in: str, acknowledged: Connection) -> None:
    """Append, until a step of the rewriting thread or the last answer ends the process."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if dies_in:
        setattr(Path, dies_in, die)
    file = history(Path(path), max_tokens=100)
    for number in range(100):
        append_all(file, [[number] * 9] * 9)
        acknowledged.send(number)
    if dies_in:
        rewritten()
    die()


@pytest.mark.parametrize("dies_in", ["", "chmod", "replace"])
def test_kill_loses_no_answer_that_was_acknowledged(tmp_path: Path, dies_in: str) -> None:
    path = tmp_path / "file"
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    writer = context.Process(target=_append_until_killed, args=(str(path), dies_in, sender))
    writer.start()
    sender.close()
    with suppress(EOFError):
        while True:
            last = receiver.recv()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    texts = sorted(contents(history(path, max_tokens=100)))  # those appended during a rewrite may change places
    expected = [[number] * 9 for number in range(last - 10, last + 1)]
    assert texts in (expected, [*expected[1:], [last + 1] * 9])
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "file.lock"}


def test_a_full_disk_costs_no_answer_of_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1], [2]])
    full = small_disk(path.stat().st_size + 10)
    with full, pytest.raises(HistoryError, match="cannot be used: No space left on device"):
        append_all(history(path), [[3, 4]])
    assert contents(history(path)) == [[1], [2]]
    append_all(history(path), [[5]])
    assert contents(history(path)) == [[1], [2], [5]]


def test_two_processes_that_make_the_file_at_once_do_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_all(history(path), [[1]])
    path.write_bytes(path.read_bytes() * 2)
    append_all(history(path), [[2]])
    assert contents(history(path)) == [[1], [2]]
