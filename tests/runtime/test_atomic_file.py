"""Files appear whole or not at all, with the right mode, and killed writers leave nothing that stays."""

import errno
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from reader_edge_runtime.atomic_file import check_writable, new_file, temporary_name, write_failure, write_file
from reader_edge_runtime.machine.path_lock import PathLock
from tests.small_disk import small_disk


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def dead_process_id() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_file_appears_when_it_is_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        with new_file(path, is_durable=True) as file:
            file.write(content)
            file.flush()
            assert not path.exists() or path.read_bytes() == b"first"
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["file"]
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(ZeroDivisionError), new_file(path) as file:
        file.write(bytes(1 // (file.write(b"half") - 4)))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_asking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    check_writable(path)
    assert os.listdir(tmp_path) == []
    write_file(path, b"old")
    check_writable(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError) as raised:
        check_writable(tmp_path / "nowhere" / "file")
    assert raised.value.filename == str(tmp_path / "nowhere" / "file")


def test_a_disk_without_room_for_so_many_bytes_is_noticed_and_nothing_stays(tmp_path: Path) -> None:
    with small_disk(1000):
        check_writable(tmp_path / "file", 1000)
        with pytest.raises(OSError, match="too large"):
            check_writable(tmp_path / "file", 1001)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space, then go on"),
        (errno.EACCES, "name a file in a folder that can be written"),
        (errno.EROFS, "name a file in a folder that can be written"),
        (errno.EIO, "see to its disk, then go on"),
    ],
)
def test_what_to_do_about_a_file_that_was_not_written_fits_the_cause(number: int, remedy: str) -> None:
    reason = os.strerror(number)
    sentence = write_failure(Path("kept"), OSError(number, reason), "go on")
    assert sentence == f"'kept' cannot be written ({reason}): {remedy}."


def test_an_error_names_the_file_even_where_the_system_does_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="No space left") as raised, new_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(path)
    with pytest.raises(OSError, match="file/below") as raised:
        write_file(path / "below", b"")
    assert os.listdir(tmp_path) == []


def test_a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_wanted_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with new_file(path, 0o600):
        pass
    assert mode_of(path) == 0o600
    path.chmod(0o640)
    write_file(path, b"new")
    assert mode_of(path) == 0o640


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_file_that_another_user_left_widens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    for theirs, mode, expected in ((0o666, 0o600, 0o600), (0o640, 0o666, 0o640), (0o044, 0o600, 0o600)):
        path.chmod(theirs)
        with new_file(path, mode):
            pass
        assert mode_of(path) == expected


def test_a_link_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_file(tmp_path / "folder" / "target", b"old")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "target")
    write_file(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "folder" / "target").read_bytes() == b"new"
    assert os.listdir(tmp_path / "folder") == ["target"]


def test_devices_and_folders_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder"):
        with pytest.raises(OSError, match="Not a regular file"):
            write_file(path, b"")
    assert (tmp_path / "pipe").is_fifo()


def _write_until_killed(path: str, has_begun: "multiprocessing.synchronize.Event") -> None:
    with new_file(Path(path)) as file:
        file.write(b"half")
        file.flush()
        has_begun.set()
        threading.Event().wait()


def test_what_a_killed_writer_left_is_cleared_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    has_begun = context.Event()
    path = tmp_path / "file"
    writer = context.Process(target=_write_until_killed, args=(str(path), has_begun))
    writer.start()
    assert has_begun.wait(60)
    (partial,) = tmp_path.iterdir()
    write_file(path, b"mine")
    assert sorted(tmp_path.iterdir()) == [partial, path]
    writer.kill()
    writer.join()
    write_file(path, b"mine again")
    assert list(tmp_path.iterdir()) == [path]


def test_only_temporary_names_of_the_same_target_are_cleared(tmp_path: Path) -> None:
    dead = dead_process_id()
    others = [".other.partial-{}-1", ".file.partial-{}", "file.partial-{}-1", ".file.old-{}-1", ".file.partial-{}-1x"]
    others += [".file.partial-0123456789abcde", ".file.partial-0123456789abcdeg", "file.partial-0123456789abcdef"]
    for name in others:
        (tmp_path / name.format(dead)).touch()
    (tmp_path / f".file.partial-{dead}-1").touch()
    (tmp_path / f".file.partial-{dead}-2").mkdir()
    (tmp_path / f".file.partial-{9 * 10**9}-1").touch()
    (tmp_path / ".file.partial-0123456789abcdef").touch()
    write_file(tmp_path / "file", b"")
    assert sorted(os.listdir(tmp_path)) == sorted(["file", *(name.format(dead) for name in others)])


def test_what_was_cleared_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_file, taken = PathLock.of_file, list[Path]()

    def of_cleared(descriptor: int, path: Path) -> PathLock | None:
        if not taken:
            taken.append(path)
            path.unlink()
        return of_file(descriptor, path)

    monkeypatch.setattr(PathLock, "of_file", of_cleared)
    write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert taken
    assert os.listdir(tmp_path) == ["file"]


def test_without_locks_files_are_whole_and_none_in_use_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "no")))
    other = temporary_name(tmp_path / "file")
    other.touch()
    write_file(tmp_path / "file", b"new")
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "file"]


# Of a container, in which every program has the same ids as in another.
_CONTAINER = """
import os, sys, threading
os.getpid = lambda: 1
threading.get_native_id = lambda: 1
from pathlib import Path
from reader_edge_runtime.atomic_file import write_file
for number in range(150):
    write_file(Path(sys.argv[1]), bytes([number]) * 300_000)
"""


def test_containers_that_share_a_folder_do_not_meet(tmp_path: Path) -> None:
    path, environment = tmp_path / "file", os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    write_file(path, b"x" * 300_000)
    command = [sys.executable, "-c", _CONTAINER, str(path)]
    containers = [subprocess.Popen(command, env=environment) for _ in range(2)]
    num_reads = 0
    while any(each.poll() is None for each in containers):
        content = path.read_bytes()
        assert content == content[:1] * 300_000
        num_reads += 1
    assert num_reads
    assert [each.returncode for each in containers] == [0, 0]
    assert os.listdir(tmp_path) == ["file"]


def test_threads_that_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(8)]
    threads = [threading.Thread(target=write_file, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]
