"""A cold machine answers at once; a warm one finds its kernels; importing the package loads no compiler."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting import kernel_loader
from reader_edge_runtime.drafting.kernel_loader import KernelLoader, _compiler_pages
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.process_memory import FilePages
from tests.drafted_text import DraftedText


def test_importing_the_runtime_imports_no_compiler() -> None:
    code = "import sys, reader_edge_runtime; sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_waits_while_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_loader, "is_complete", lambda: False)
    is_compiled = threading.Event()
    monkeypatch.setattr(kernel_loader, "_compile_elsewhere", is_compiled.wait)
    loader = KernelLoader()
    monkeypatch.setattr(KernelLoader, "shared", lambda: loader)
    drafter = RetrievalDrafter(DraftConfig())
    text = DraftedText(drafter, [1, 2, 1, 2, 1])
    assert text.draft(8, 8).token_ids == [1]
    text.finish()
    is_compiled.set()  # all of the above came first
    drafter.wait()
    assert len(DraftedText(drafter, [1, 2, 1, 2, 1]).draft(8, 8)) > 1


def test_processes_that_start_together_compile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = threading.Event()
    num_compiled = []

    def compile_elsewhere() -> None:
        num_compiled.append(1)
        compiled.wait(0.2)  # time for the others to ask
        compiled.set()

    monkeypatch.setattr(kernel_loader, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(kernel_loader, "is_complete", compiled.is_set)
    monkeypatch.setattr(kernel_loader, "_compile_elsewhere", compile_elsewhere)
    monkeypatch.setattr(kernel_loader, "warm_up", lambda after_step: None)
    loaders = [KernelLoader() for _ in range(3)]
    for loader in loaders:
        loader.wait()
    assert len(num_compiled) == 1


def test_the_compiler_is_given_back_while_kernels_load_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[KernelLoader] = []
    forgotten: list[bool] = []
    monkeypatch.setattr(FilePages, "forget", lambda self: forgotten.append(any(each.is_ready for each in loaders)))
    loaders.append(KernelLoader())
    loaders[0].wait()
    assert len(forgotten) > 3
    assert not any(forgotten)  # nobody is told to go on before
    compiler = _compiler_pages()
    assert compiler.ranges or sys.platform != "linux"


def test_what_keeps_kernels_from_loading_is_told_to_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise OSError("no compiler")

    monkeypatch.setattr(kernel_loader, "is_complete", broken)
    loader = KernelLoader()
    monkeypatch.setattr(KernelLoader, "shared", lambda: loader)
    drafter = RetrievalDrafter(DraftConfig())
    with pytest.raises(OSError, match="no compiler"):
        drafter.wait()
    assert len(DraftedText(drafter, [1, 2, 1, 2, 1]).draft(8, 8)) == 1


def test_cache_folder_follows_the_environment_and_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = kernel_loader.cache_folder.__wrapped__
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    found = folder()
    assert found is not None
    assert found.parent == tmp_path
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert folder() is None
