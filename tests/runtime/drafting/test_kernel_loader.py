"""A cold machine answers at once; a warm one finds its kernels; importing the package loads no compiler."""

import subprocess
import sys
import threading

import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting import kernel_loader
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.machine_code.library import KernelLibrary
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.machine.process_memory import FilePages
from tests.drafted_text import DraftedText


def test_importing_the_runtime_imports_no_compiler() -> None:
    code = "import sys, reader_edge_runtime; sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_waits_while_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    library, is_compiled = KernelLibrary.shared(), threading.Event()
    monkeypatch.setattr(KernelLibrary, "shared", lambda: is_compiled.wait() and library)
    loader = KernelLoader()
    monkeypatch.setattr(KernelLoader, "shared", lambda: loader)
    drafter = RetrievalDrafter(DraftConfig())
    text = DraftedText(drafter, [1, 2, 1, 2, 1])
    assert text.draft(8, 8).token_ids == [1]
    text.finish()
    is_compiled.set()  # all of the above came first
    drafter.wait()
    assert len(DraftedText(drafter, [1, 2, 1, 2, 1]).draft(8, 8)) > 1


def test_the_compiler_is_given_back_before_anybody_is_told_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[KernelLoader] = []
    forgotten: list[bool] = []
    monkeypatch.setattr(FilePages, "forget", lambda self: forgotten.append(any(each.is_ready for each in loaders)))
    loaders.append(KernelLoader())
    loaders[0].wait()
    assert forgotten == [False]
    assert kernel_loader._compiler_pages().ranges or sys.platform != "linux"


def test_what_keeps_kernels_from_loading_is_told_to_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> KernelLibrary:
        raise OSError("no compiler")

    monkeypatch.setattr(KernelLibrary, "shared", broken)
    loader = KernelLoader()
    monkeypatch.setattr(KernelLoader, "shared", lambda: loader)
    drafter = RetrievalDrafter(DraftConfig())
    with pytest.raises(OSError, match="no compiler"):
        drafter.wait()
    assert len(DraftedText(drafter, [1, 2, 1, 2, 1]).draft(8, 8)) == 1
