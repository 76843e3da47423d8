"""Loads the compiled core beside the first requests, and has it compiled in another process where it never was."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from filelock import FileLock

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting import kernel_cache
from reader_edge_runtime.process_memory import FilePages

_TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5]


class KernelLoader:
    """Loads the kernels once for the process. `is_ready` turns true when they can be called at once."""

    def __init__(self) -> None:
        self.is_ready = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @classmethod
    @functools.cache
    def shared(cls) -> "KernelLoader":
        """The loader of this process."""
        return cls()

    def start(self) -> None:
        """Begin to load; returns at once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name="reader-edge kernels", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Return when the kernels are ready; raises what kept them from being loaded."""
        self.start()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _load(self) -> None:
        try:
            folder = kernel_cache.cache_folder()
            if not kernel_cache.is_complete() and folder is not None:
                with FileLock(folder / "compiling.lock"):  # one process compiles, and others wait for it
                    if not kernel_cache.is_complete():
                        _compile_elsewhere()
            compiler = _compiler_pages()
            compiler.forget()  # compiled kernels run without it
            warm_up(compiler.forget)
            self.is_ready = True
        except BaseException as error:  # nothing is drafted then; `wait` tells why
            self._error = error


def warm_up(after_step: Callable[[], None] = lambda: None) -> None:
    """Call every kernel once, which compiles it or loads what was compiled: draft, learn, outgrow every array and
    forget, with the types that requests use.

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
    kernel_cache.mark_complete()


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
