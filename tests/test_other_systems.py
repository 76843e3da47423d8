"""Runs under other systems, with fewer extras and in other environments."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reader_edge.models.store import StoredModel
from reader_edge.terminal import memory
from reader_edge_runtime import atomic_file
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.machine_code import library
from reader_edge_runtime.drafting.machine_code.compile_target import CompileTarget
from reader_edge_runtime.drafting.machine_code.library import KernelLibrary
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.machine import bounded_worker, process_memory, processor
from tests.drafted_text import DraftedText

if sys.platform == "win32":
    pytest.skip("Windows plays no other system", allow_module_level=True)


@pytest.mark.parametrize("listing", ["_MAPS", "_SMAPS"])
def test_without_smaps_no_page_is_given_back(listing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, listing, tmp_path / "hidden")
    monkeypatch.setattr(process_memory, "_MIN_BYTES", 1)  # the interpreter itself is small
    pages = process_memory.FilePages(Path(sys.executable))
    pages.forget()
    assert pages.ranges == []


def test_cores_and_processor_are_known_without_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert processor.num_usable_cores() == (os.cpu_count() or 1)
    assert processor.processor_name(tmp_path / "none")
    assert not processor.has_saturating_sums(tmp_path / "none")


def test_memory_in_use_is_the_peak_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory.resident_bytes() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory.resident_bytes() == memory.peak_bytes() == 0


def test_free_memory_is_unknown_without_linux(tmp_path: Path) -> None:
    assert process_memory.free_bytes(tmp_path) is None


def test_on_windows_bounded_processes_have_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(bounded_worker, "signal", SimpleNamespace())
    bounded_worker._limit_memory(1)
    bounded_worker.start_clock(1)
    assert bounded_worker.stop_clock(0.5) == 0.5


def test_on_windows_no_folder_is_synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError

    monkeypatch.setattr(atomic_file, "os", SimpleNamespace(name="nt", open=refuse, O_RDONLY=0))
    atomic_file._sync_folder(tmp_path)


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("linux", "x86_64", "linux-x86_64"),
        ("linux", "aarch64", "linux-aarch64"),
        ("darwin", "arm64", "darwin-arm64"),
        ("win32", "AMD64", "win32-amd64"),
    ],
)
def test_each_machine_finds_its_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(library, "_HERE", tmp_path)
    target = CompileTarget.of_this_machine()
    assert (target.name, bool(target.triple)) == (name, True)
    (tmp_path / library.object_name(target)).write_bytes(library.sealed(b"its own"))
    assert library.machine_code() == b"its own"


def test_a_machine_without_kernels_compiles_for_what_llvm_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert CompileTarget.of_this_machine() == CompileTarget(f"{sys.platform}-riscv64", triple="", cpu="generic")


def test_answers_are_plain_where_no_new_code_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError("no executable memory")

    monkeypatch.setattr("llvmlite.binding.check_jit_execution", refuse)
    monkeypatch.setattr(KernelLibrary, "shared", lambda: KernelLibrary(b""))
    loader = KernelLoader()
    monkeypatch.setattr(KernelLoader, "shared", lambda: loader)
    drafter = RetrievalDrafter(DraftConfig())
    assert DraftedText(drafter, [1, 2, 1, 2, 1]).draft(8, 8).token_ids == [1]
    with pytest.raises(PermissionError, match="no executable memory"):
        drafter.wait()


_WITHOUT_EXPORT = """
import sys
from importlib.abc import MetaPathFinder

MISSING = {"gguf", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "optimum", "safetensors", "torch", "transformers"}

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import reader_edge.cli
import reader_edge_export
"""


def test_the_command_and_the_checks_before_an_export_need_nothing_of_the_export_extra() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXPORT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


_PRINT = """
import subprocess, sys
from tests import conftest
print(conftest._REAL_MODEL, flush=True)
if len(sys.argv) == 2:
    subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""


@pytest.mark.long
def test_workers_look_for_the_real_model_where_their_parent_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = StoredModel("smollm2:135m").folder / "source" / "model.gguf"
    source.parent.mkdir(parents=True)
    source.touch()
    inherited = {name: value for name, value in os.environ.items() if name != "READER_EDGE_TESTS_MODEL"}
    environment = inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PRINT, _PRINT]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert printed.splitlines() == [str(source)] * 2
