"""The folder OUT.training, in which one training at a time keeps what it has."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reader_edge_runtime.atomic_file import write_failure
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.machine.path_lock import PathLock

CHECKPOINT_NAME = "checkpoint.bin"


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
        _check(folder)
        yield folder
    finally:
        lock.release()


def _check(folder: Path) -> None:
    """Raise ExportError for a link, which would be written through, and for what is no file."""
    for path in folder.iterdir():
        if path.suffix == ".bin" and not stat.S_ISREG(path.lstat().st_mode):
            raise ExportError(f"'{path}' is no plain file: remove it, then the same command resumes.")
