"""Where compiled kernels are kept, and whether they are there.

One folder for each version of the kernels, Python, numba and processor, below `NUMBA_CACHE_DIR` or the user's cache
folder. numba checks only the file a kernel stands in, not those of its parts; the folder's name covers them all.
"""

import functools
import hashlib
import os
import platform
from pathlib import Path

import platformdirs

_COMPLETE = "complete"


@functools.cache
def cache_folder() -> Path | None:
    """The folder for this version, made if need be; None where no folder can be written."""
    root = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(root) if root else Path(platformdirs.user_cache_dir("reader-edge", appauthor=False)) / "kernels"
    folder = base / _fingerprint()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def is_complete() -> bool:
    """Whether all kernels of this version were compiled and stored."""
    folder = cache_folder()
    return folder is not None and (folder / _COMPLETE).exists()


def mark_complete() -> None:
    """Note that all kernels of this version are stored."""
    folder = cache_folder()
    if folder is not None:
        (folder / _COMPLETE).touch()


def _fingerprint() -> str:
    import llvmlite
    import numba
    from llvmlite import binding

    parts = [platform.python_version(), numba.__version__, llvmlite.__version__, binding.get_host_cpu_name()]
    parts.append(binding.get_host_cpu_features().flatten())
    for path in sorted((Path(__file__).parent / "kernels").glob("*.py")):
        # numba binds stored code to path and time of change, so a copy elsewhere is another version
        parts.append(f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
