"""The folder in which a user's models, measurements and compiled modules are kept."""

import os
import stat
from pathlib import Path

from platformdirs import user_cache_path

from reader_edge_runtime.atomic_file import new_file
from reader_edge_runtime.errors import ConfigError, UserFileError
from reader_edge_runtime.untrusted.untrusted_json import Kind, converted, read_json


def cache_folder() -> Path:
    """Raises ConfigError for a user without a home, as containers have them."""
    try:
        return user_cache_path("reader-edge")
    except RuntimeError:
        raise ConfigError("This user has no home folder: set XDG_CACHE_HOME to a folder for models.") from None


def make_private(folder: Path, root: Path) -> None:
    """Make a folder at or below another, both for this user alone where they are new. Raises OSError."""
    for each in (*reversed(folder.parents), folder):
        if each.is_relative_to(root) or each == folder:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Put `data` in a file of the cache, which nobody else may read or write. Raises OSError."""
    make_private(path.parent, cache_folder())
    with new_file(path, 0o600, keeps_mode=False) as file:
        file.write(data)


def read_kept(path: Path, kind: type[Kind], max_bytes: int) -> Kind | None:
    """What a file of the cache holds, as JSON of this class; None where it is absent or holds anything else."""
    try:
        return converted(read_json(path, UserFileError, "", max_bytes), kind, "", UserFileError, "")
    except (OSError, UserFileError):
        return None


def why_untrusted(path: Path, root: Path) -> str | None:
    """Why no code is run that lies in a file or folder at or below `root`; None where it may be, or nothing is there.

    Another user who may write there could have this one run their code. Windows has no such permissions.
    """
    if not hasattr(os, "getuid"):
        return None
    places = [each for each in (path, *path.parents) if each.is_relative_to(root)] or [path, path.parent]
    for each in filter(os.path.lexists, places):
        found = each.stat() if each.exists() else each.lstat()
        if found.st_uid != os.getuid():
            return f"'{each}' belongs to another user, so no code is taken from there: remove it."
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"'{each}' can be written by its group or others, so no code is taken from there: `chmod go-w` it."
    return None
