"""Loads the compiled kernels beside the first requests, and has them compiled in another process if need be.

They are kept below `NUMBA_CACHE_DIR` or the user's cache folder, in one folder for each version of the kernels, Python,
numba and processor: numba itself checks only the file that a kernel stands in, not those of its parts.
"""

import functools
import hashlib
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.process_memory import FilePages

_TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5]
_COMPLETE = "complete"


class KernelLoader:
    """Loads the kernels on a thread that starts at once. `is_ready` turns true when they can be called."""

    def __init__(self) -> None:
        self.is_ready = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="reader-edge kernels", daemon=True)
        self._thread.start()

    @classmethod
    @functools.cache
    def shared(cls) -> "KernelLoader":
        """The loader of this process."""
        return cls()

    def wait(self) -> None:
        """Return when the kernels are ready; raises what kept them from being loaded."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _load(self) -> None:
        try:
            folder = cache_folder()
            if not is_complete() and folder is not None:
                with FileLock(folder / "compiling.lock"):  # one process compiles, and others wait for it
                    if not is_complete():
                        _compile_elsewhere()
            compiler = _compiler_pages()
            compiler.forget()  # compiled kernels run without it
            warm_up(compiler.forget)
            self.is_ready = True
        except BaseException as error:  # nothing is drafted then; `wait` tells why
            self._error = error


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


def warm_up(after_step: Callable[[], None] = lambda: None) -> None:
    """Compile or load every kernel by calling it: draft, learn, outgrow every array and forget.

    after_step: called in between, since loading a kernel leaves memory behind.
    """
    from reader_edge_runtime.drafting.core import DraftingCore

    top_ids, top_logits = np.arange(8, dtype=np.int64).reshape(2, 4), np.zeros((2, 4), np.float32)
    scored = ScoredTree(DraftTree.chain([1, 2000, 3]), range(1, 3), 2, top_ids, top_logits, vocab_size=8)
    core = DraftingCore(DraftConfig(max_history_tokens=40))
    for _ in range(3):
        request = core.begin([*_TEXT, *range(1000)])
        after_step()
        core.successors.learn(scored, [1, 2])
        after_step()
        request.draft(8, 4)
        request.observe(_TEXT)
        request.finish()
        after_step()
    if folder := cache_folder():
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


def _compiler_pages() -> FilePages:
    """The compiler's own code, which takes more memory than all that is loaded with it."""
    import llvmlite.binding

    return FilePages(Path(llvmlite.binding.__file__).with_name("libllvmlite.so"))


def _compile_elsewhere() -> None:
    """Compile in a process of low priority: in this one, compiling would hold the interpreter for seconds."""
    if not sys.executable:
        return
    command = [sys.executable, "-P", "-m", "reader_edge_runtime.drafting.kernel_loader"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    silence = subprocess.DEVNULL
    # Where it fails, this process compiles.
    subprocess.run(
        command, env=environment, stdin=silence, stdout=silence, stderr=silence, check=False, start_new_session=True
    )


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    warm_up()
