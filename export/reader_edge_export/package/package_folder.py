"""The folder that an export or a training writes: it appears whole, or everything stays as it was before."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reader_edge_export.journal import JOURNAL_NAME, MOMENTS_NAME, TABLE_NAME, WORK_NAME, has_work
from reader_edge_runtime.atomic_file import FULL_DISK, leftovers, temporary_name, temporary_names, write_failure
from reader_edge_runtime.errors import ExportError, ExportPlaceError
from reader_edge_runtime.machine.path_lock import PathLock
from reader_edge_runtime.package.manifest import MANIFEST_NAME, WEIGHTS_NAME

CHECKPOINT_NAME = "checkpoint.bin"


def check_target(out: Path, force: bool | None, manifest_name: str = MANIFEST_NAME) -> None:
    """Raise ExportPlaceError unless a folder with this manifest may be written at `out`, an absolute path.

    force: None where what is there is never replaced.
    """
    if not str(out).isprintable():  # else ONNX's own libraries fail, and a terminal obeys
        raise ExportPlaceError(f"'{out}' holds what is no text, or cannot be shown: choose another folder.")
    try:
        _check_place(out)
    except OSError as error:
        raise _unwritten(out, error) from error
    if not out.exists():
        if out.is_symlink():
            raise ExportPlaceError(
                f"'{out}' is a link to '{os.readlink(out)}', which is not there: choose another folder."
            )
        return
    if not force:
        remedy = "choose another folder" if force is None else "choose another folder or replace it with --force"
        raise ExportPlaceError(f"'{out}' exists already: {remedy}.")
    if not out.is_dir() or (any(out.iterdir()) and not (out / manifest_name).is_file()):
        raise ExportPlaceError(f"'{out}' is no model package, so --force does not replace it: choose another folder.")


@contextmanager
def new_package(
    out: Path, force: bool | None, key: str | None = None, manifest_name: str = MANIFEST_NAME
) -> Iterator[Path]:
    """A folder beside `out` that takes its place when the block ends well, and vanishes when it does not.

    Its folder WORK_NAME goes when it is in its place, and not before: what a kill leaves can be resumed. At first
    it is empty, or has the work that an export of the same key left there when it was killed (see `Journal`).
    Raises ExportError for a target in the way, a full disk and other failures of the file system.
    """
    partial = temporary_name(out)
    lock = None
    try:
        _put_back(out, partial)
        check_target(out, force, manifest_name)
        lock = _taken_over(out, key, partial) or PathLock.new_folder(partial)
        yield partial
        check_target(out, force, manifest_name)
        _put_in_place(partial, out)
    except Exception as error:
        if is_disk_full(error):
            raise ExportError(
                f"The disk of '{out.parent}' is full: free some space, then give the same command."
            ) from error
        if isinstance(error, OSError):
            raise _unwritten(out, error) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            lock.release()


def _check_place(out: Path) -> None:
    """Raise the OSError that a folder beside `out` would: for work that makes one only at its end."""
    parent = next(each for each in out.parents if each.exists())
    probe = parent / temporary_name(out).name
    probe.mkdir()
    with suppress(FileNotFoundError):  # another export cleared it
        probe.rmdir()


def _unwritten(out: Path, error: OSError) -> ExportError:
    return ExportError(f"'{out}' cannot be written ({error.strerror or error}): choose another folder.")


def _put_back(out: Path, partial: Path) -> None:
    """An old package that a killed export to `out` had moved away comes back."""
    for old in leftovers(out, "old"):
        if out.exists():
            _remove(old, partial)
        else:
            old.rename(out)


def _taken_over(out: Path, key: str | None, partial: Path) -> PathLock | None:
    """Give the name `partial` to the folder of a killed export to `out`, where one of the key can go on with it.

    Other folders of killed exports are removed. None where there is none to go on with.
    """
    taken = None
    for path in temporary_names(out):
        lock = PathLock.take(path)
        if lock is None or not lock.is_real:
            continue
        if taken is None and key is not None and _is_own(path) and has_work(path, key):
            path.rename(partial)
            _keep_work(partial)
            taken = lock
        else:
            shutil.rmtree(path, ignore_errors=True)
            lock.release()
    return taken


def _is_own(folder: Path) -> bool:
    """Whether what an export resumes is this user's, and no link to what lies elsewhere."""
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    is_folder = dict.fromkeys(_worked_on(folder), False) | {folder: True, folder / WORK_NAME: True}
    for path, is_one in is_folder.items():
        if path.is_symlink() or path.exists():
            state = path.lstat()
            kind = stat.S_ISDIR(state.st_mode) if is_one else stat.S_ISREG(state.st_mode) and state.st_nlink == 1
            if not kind or state.st_uid != user:
                return False
    return True


def _keep_work(folder: Path) -> None:
    """Remove from a folder all that an export does not go on with."""
    for path in (*folder.iterdir(), *(folder / WORK_NAME).iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name != WORK_NAME:
                shutil.rmtree(path)
        elif path not in _worked_on(folder):
            path.unlink()


def _worked_on(folder: Path) -> list[Path]:
    """The files that an export resumes."""
    return [folder / WEIGHTS_NAME, *(folder / WORK_NAME / name for name in (JOURNAL_NAME, MOMENTS_NAME, TABLE_NAME))]


def _put_in_place(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        _remove(out / WORK_NAME, partial)
        return
    old, lock = temporary_name(out, "old"), PathLock.take(out)  # else another export would put it back meanwhile
    try:
        out.rename(old)
        try:
            partial.rename(out)
        except BaseException:
            if not out.exists():
                old.rename(out)
            raise
        _remove(out / WORK_NAME, partial)
        _remove(old, partial)
    finally:
        if lock is not None:
            lock.release()


def _remove(folder: Path, partial: Path) -> None:
    """Remove a folder by the name `partial`: what a kill leaves of it is no package and no work."""
    with suppress(FileNotFoundError):
        folder.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a full disk."""
    # Libraries in C++ report a full disk as a RuntimeError with the system's words.
    while error is not None:
        if (isinstance(error, OSError) and error.errno in FULL_DISK) or os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def training_folder(out: Path) -> Iterator[Path]:
    """Make the folder and have it alone. Raises ExportError, also where another training to `out` runs."""
    folder = out.with_name(f"{out.name}.training")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ExportError(f"'{folder}' is in the way, and no folder: move it away, or name another --out.") from None
    except OSError as error:
        raise ExportError(write_failure(folder, error, "the same command resumes")) from error
    lock = PathLock.take(Path(os.path.realpath(folder)))
    if lock is None:
        raise ExportError(f"'{folder}' is in use by another training: wait for its end, or name another --out.")
    try:
        for path in folder.iterdir():  # a link would be written through
            if path.suffix == ".bin" and not stat.S_ISREG(path.lstat().st_mode):
                raise ExportError(f"'{path}' is no plain file: remove it, then the same command resumes.")
        yield folder
    finally:
        lock.release()
