"""Loads the compiled core beside the first requests, and has it compiled in another process where it never was."""

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

from filelock import FileLock

from reader_edge_runtime.process_memory import FilePages


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
            from reader_edge_runtime.drafting import kernel_cache

            folder = kernel_cache.cache_folder()
            if not kernel_cache.is_complete() and folder is not None:
                with FileLock(folder / "compiling.lock"):  # one process compiles, and others wait for it
                    if not kernel_cache.is_complete():
                        _compile_elsewhere()
            compiler = _compiler_pages()
            compiler.forget()  # compiled kernels run without it
            from reader_edge_runtime.drafting.warm_up import warm_up

            warm_up(compiler.forget)
            self.is_ready = True
        except BaseException as error:  # nothing is drafted then; `wait` tells why
            self._error = error


def _compiler_pages() -> FilePages:
    """The compiler's own code, which takes more memory than all that is loaded with it."""
    import llvmlite.binding

    return FilePages(Path(llvmlite.binding.__file__).with_name("libllvmlite.so"))


def _compile_elsewhere() -> None:
    """Compile in a process of low priority: in this one, compiling would hold the interpreter for seconds."""
    if not sys.executable:
        return
    command = [sys.executable, "-P", "-m", "reader_edge_runtime.drafting.warm_up"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,  # then this process compiles
        start_new_session=True,
    )
