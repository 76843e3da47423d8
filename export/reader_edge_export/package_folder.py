"""The folder that an export writes: it appears whole, or everything stays as it was."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reader_edge_runtime.atomic_file import FULL_DISK, clear_leftovers, leftovers, temporary_name
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import MANIFEST_NAME


def check_target(out: Path, force: bool) -> None:
    """Raise ExportError unless a package may be written at `out`, an absolute path."""
    if not str(out).isprintable():  # else ONNX's own libraries fail, and a terminal obeys
        raise ExportError(f"'{out}' holds what is no text, or cannot be shown: choose another folder.")
    if not out.exists():
        return
    if not force:
        raise ExportError(f"'{out}' exists already: choose another folder or replace it with --force.")
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST_NAME).is_file()):
        raise ExportError(f"'{out}' is no model package, so --force does not replace it: choose another folder.")


@contextmanager
def new_package(out: Path, force: bool) -> Iterator[Path]:
    """An empty folder beside `out` that takes its place when the block ends well, and vanishes when it does not.

    Raises ExportError for a target in the way, a full disk and other failures of the file system.
    """
    partial = temporary_name(out)
    try:
        _recover(out)
        check_target(out, force)
        partial.mkdir(parents=True)
        yield partial
        check_target(out, force)
        _put_in_place(partial, out)
    except Exception as error:
        if is_disk_full(error):
            raise ExportError(f"The disk of '{out.parent}' is full: free some space and export again.") from error
        if isinstance(error, OSError):
            raise ExportError(
                f"The package at '{out}' cannot be written ({error.strerror or error}): choose another folder."
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _recover(out: Path) -> None:
    """Clear what killed exports to `out` left behind; an old package that one had moved away comes back."""
    clear_leftovers(out)
    for old in leftovers(out, "old"):
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(out)


def _put_in_place(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        return
    old = temporary_name(out, "old")
    out.rename(old)
    try:
        partial.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a full disk."""
    # Libraries in C++ report a full disk as a RuntimeError with the system's words.
    while error is not None:
        if (isinstance(error, OSError) and error.errno in FULL_DISK) or os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
