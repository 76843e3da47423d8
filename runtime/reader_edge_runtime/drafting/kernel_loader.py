"""Loads the compiled kernels in a thread of its own, beside the first requests."""

import functools
import importlib
import threading
from pathlib import Path

from reader_edge_runtime.drafting.machine_code.library import KernelLibrary, linked_library
from reader_edge_runtime.machine.process_memory import FilePages


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
            KernelLibrary.shared()
            if linked_library() is None:
                _compiler_pages().forget()  # the kernels run without it
            importlib.import_module("reader_edge_runtime.drafting.core")  # now: a request may find no file to open left
            self.is_ready = True
        except BaseException as error:  # nothing is drafted then; `wait` tells why
            self._error = error


def _compiler_pages() -> FilePages:
    """LLVM, which loads the kernels and takes more memory than all that is loaded with it."""
    import llvmlite.binding

    return FilePages(Path(llvmlite.binding.__file__).with_name("libllvmlite.so"))
