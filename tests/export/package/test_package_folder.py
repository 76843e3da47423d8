"""The folders of exports and trainings appear whole or not at all, also after kills; nothing in the way is harmed."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from reader_edge_export.journal import JOURNAL_NAME, MOMENTS_NAME, WORK_NAME, Journal
from reader_edge_export.package.package_folder import check_target, new_package, training_folder
from reader_edge_runtime.atomic_file import leftovers
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.machine.path_lock import PathLock
from reader_edge_runtime.package.manifest import MANIFEST_NAME, WEIGHTS_NAME


@pytest.fixture
def dead_process_id() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write_package(folder: Path, content: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).write_text(content)


def test_the_next_export_clears_what_killed_ones_left(tmp_path: Path, dead_process_id: int) -> None:
    write_package(tmp_path / f".out.partial-{dead_process_id}-1", "half")
    write_package(tmp_path / f".out.partial-{os.getppid()}-1", "half, and its process's id was given again")
    write_package(tmp_path / f".out.old-{dead_process_id}-1", "older")
    write_package(tmp_path / "out", "old")
    with new_package(tmp_path / "out", force=True) as partial:
        write_package(partial, "new")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "new"


def test_a_package_that_a_killed_export_had_moved_away_comes_back(tmp_path: Path, dead_process_id: int) -> None:
    write_package(tmp_path / f".out.old-{dead_process_id}-1", "the only copy")
    with pytest.raises(ExportError, match="exists already"), new_package(tmp_path / "out", force=False):
        pass
    with pytest.raises(RuntimeError, match="fails"), new_package(tmp_path / "out", force=True):
        raise RuntimeError("fails")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "the only copy"


def leave_work(folder: Path, key: str = "key") -> Path:
    """What a killed export leaves that had its calibration."""
    folder.mkdir()
    with Journal(folder, key) as journal:
        journal.add_calibration({})
    (folder / WORK_NAME / MOMENTS_NAME).write_text("moments")
    (folder / WEIGHTS_NAME).write_text("weights")
    (folder / "twin").mkdir()
    (folder / "tokenizer.json").write_text("half")
    return folder


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WORK = [WEIGHTS_NAME, f"{WORK_NAME}/{JOURNAL_NAME}", f"{WORK_NAME}/{MOMENTS_NAME}"]


def test_an_export_of_the_same_key_gets_what_a_killed_one_had_done(tmp_path: Path) -> None:
    leave_work(tmp_path / f".out.partial-{os.getppid()}-1")
    leave_work(tmp_path / f".out.partial-{os.getppid()}-2")
    leave_work(tmp_path / f".out.partial-{os.getppid()}-3", "another key")
    with new_package(tmp_path / "out", force=False, key="key") as partial:
        assert list(tmp_path.iterdir()) == [partial]
        assert files_of(partial) == WORK
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("key", ["another", None])
def test_an_export_of_another_key_begins_with_an_empty_folder(key: str | None, tmp_path: Path) -> None:
    leave_work(tmp_path / f".out.partial-{os.getppid()}-1")
    with new_package(tmp_path / "out", force=False, key=key) as partial:
        assert list(tmp_path.iterdir()) == [partial]
        assert files_of(partial) == []


def test_exports_to_one_target_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    leave_work(tmp_path / f".out.partial-{os.getppid()}-1")
    with new_package(out, force=True, key="key") as first, new_package(out, force=True, key="key") as second:
        assert (files_of(first), files_of(second)) == (WORK, [])
        write_package(first, "first")
        write_package(second, "second")
    assert (out / MANIFEST_NAME).read_text() == "first"  # which ended last
    assert os.listdir(tmp_path) == ["out"]


def test_a_living_process_keeps_its_folder_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib; from reader_edge_export.package.package_folder import new_package\n"
        "with new_package(pathlib.Path(sys.argv[1]), False): print('here', flush=True); time.sleep(600)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        (held,) = tmp_path.iterdir()
        with new_package(tmp_path / "out", force=False) as partial:
            assert set(tmp_path.iterdir()) == {held, partial}
            write_package(partial, "new")
        process.kill()
    with new_package(tmp_path / "out", force=True) as partial:
        assert set(tmp_path.iterdir()) == {tmp_path / "out", partial}


@pytest.mark.parametrize("force", [False, True])
def test_work_goes_once_the_package_is_in_its_place(force: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if force:
        write_package(out, "old")
    leave_work(tmp_path / f".out.partial-{os.getppid()}-1")
    with new_package(out, force, key="key") as partial:
        write_package(partial, "new")
    assert os.listdir(tmp_path) == ["out"]
    assert sorted(os.listdir(out)) == [WEIGHTS_NAME, MANIFEST_NAME]


def test_no_kill_leaves_half_of_a_package(
    tmp_path: Path, dead_process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: removed.append(path))
    write_package(tmp_path / "out", "old")
    write_package(tmp_path / f".out.old-{dead_process_id}-1", "older")
    with new_package(tmp_path / "out", force=True) as partial:
        partial.rename(tmp_path / "older")  # which was not removed
        write_package(partial, "new")
    assert removed
    assert not list(leftovers(tmp_path / "out", "old"))
    assert all(".out.partial-" in path.name for path in removed)


@pytest.mark.parametrize("place", ["", WORK_NAME, WEIGHTS_NAME, f"{WORK_NAME}/{MOMENTS_NAME}"])
def test_links_to_what_lies_elsewhere_are_not_taken_over(place: str, tmp_path: Path) -> None:
    precious, left = tmp_path / "precious", tmp_path / "packages" / f".out.partial-{os.getppid()}-1"
    left.parent.mkdir()
    leave_work(left)
    (left / place).rename(precious)
    (left / place).symlink_to(precious)
    before = sorted(tmp_path.glob("precious/**/*")) or precious.read_bytes()
    with new_package(left.with_name("out"), force=False, key="key") as partial:
        assert files_of(partial) == []
    assert (sorted(tmp_path.glob("precious/**/*")) or precious.read_bytes()) == before


def test_without_locks_what_may_be_in_use_stays(
    tmp_path: Path, dead_process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.EBADF, "no")))
    left = [leave_work(tmp_path / f".out.partial-{number}-1") for number in (dead_process_id, os.getppid())]
    with new_package(tmp_path / "out", force=False, key="key") as partial:
        assert files_of(partial) == []
        assert set(tmp_path.iterdir()) == {*left, partial}


def test_an_old_package_that_a_living_export_has_moved_away_is_not_put_back(tmp_path: Path) -> None:
    out, seen = tmp_path / "out", list[str]()
    write_package(out, "old")
    rename = Path.rename

    def rename_beside_another(path: Path, target: Path) -> Path:
        if path.name.startswith(".out.partial") and Path(target) == out:  # the old one is away
            with suppress(EOFError), new_package(out, force=True):
                seen.extend(each.name for each in tmp_path.iterdir())
                raise EOFError  # it ends without a package
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch, new_package(out, force=True) as partial:
        write_package(partial, "new")
        patch.setattr(Path, "rename", rename_beside_another)
    assert sorted(name[:8] for name in seen) == [".out.old", ".out.par", ".out.par"]
    assert (out / MANIFEST_NAME).read_text() == "new"


def test_a_folder_cleared_before_its_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, taken = PathLock.take, list[Path]()

    def take_cleared(folder: Path, waits: bool = False) -> PathLock | None:
        if not taken:
            taken.append(folder)
            folder.rmdir()
        return take(folder, waits)

    monkeypatch.setattr(PathLock, "take", take_cleared)
    with new_package(tmp_path / "out", force=False) as partial:
        assert taken == [partial]
        assert partial.is_dir()


@pytest.mark.skipif(os.name == "nt", reason="links and names of other lengths")
def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused = {
        "link": r"is a link to '.*nowhere', which is not there",
        "x" * 246: r"cannot be written \(File name too long\)",
        "new/" + "x" * 300: r"cannot be written \(File name too long\)",
        "file/out": r"cannot be written \(Not a directory\)",
    }
    for name, words in refused.items():
        with pytest.raises(ExportError, match=f"{words}: choose another folder"):
            check_target(tmp_path / name, force=False)
    check_target(tmp_path / "new" / "out", force=False)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.parametrize("name", ["out\udcff", "\x1b[2J"], ids=["no text", "an escape sequence"])
def test_a_name_that_cannot_be_shown_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="choose another folder"):
        check_target(tmp_path / name, force=False)


@pytest.mark.parametrize("name", ["checkpoint.bin", "answers-0001.bin"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_what_is_no_plain_file_is_refused_before_anything_is_written(name: str, kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "out.training" / name, tmp_path / "other"
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    if kind == "link":
        other.write_bytes(b"mine")
    for _ in range(2):  # the lock is free again
        with pytest.raises(ExportError, match=f"{name}' is no plain file"), training_folder(tmp_path / "out"):
            pass
    assert not other.exists() or other.read_bytes() == b"mine"


@pytest.mark.parametrize("is_link", [False, True])
def test_what_lies_in_the_folders_way_stays(is_link: bool, tmp_path: Path) -> None:
    path = tmp_path / "out.training"
    if is_link:
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"mine")
    with pytest.raises(ExportError, match="is in the way"), training_folder(tmp_path / "out"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["out.training"]


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "out.training").symlink_to("large disk")
    with training_folder(tmp_path / "out") as folder:
        assert folder.samefile(tmp_path / "large disk")
