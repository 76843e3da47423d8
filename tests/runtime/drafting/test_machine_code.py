"""Kernels as machine code: what is loaded and never is, how it is compiled, and that it does what its Python does."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from native.build_library import link
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting import core as core_module
from reader_edge_runtime.drafting import kernel_loader
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.kernels import counts, datastore, learning, successors
from reader_edge_runtime.drafting.kernels import tree as tree_kernels
from reader_edge_runtime.drafting.kernels.kernel import Kernel
from reader_edge_runtime.drafting.machine_code import library
from reader_edge_runtime.drafting.machine_code.compile_target import TARGETS, CompileTarget
from reader_edge_runtime.drafting.machine_code.library import KernelLibrary, sealed
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources import successor_store
from reader_edge_runtime.errors import DraftError
from reader_edge_runtime.machine.process_memory import FilePages
from tests.drafted_text import DraftedText


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without compiled kernels: the folder of the wheel's and, in it, the empty cache."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(library, "_HERE", tmp_path)
    monkeypatch.setattr(library, "cache_folder", lambda: cache)
    return tmp_path


def _learned(texts: Sequence[Sequence[int]]) -> list[tuple[DraftTree, np.ndarray[Any, Any]]]:
    """The tree at every fourth token of some texts, after all that came before, and the mixture at their ends."""
    core = DraftingCore(DraftConfig(max_history_tokens=30))  # the second text has the first forgotten
    found = []
    for text in texts:
        request = core.begin(text[:6])
        for end in range(6, len(text), 4):
            tree = request.draft(12, 4)
            top_ids, top_logits = np.array([[text[end], 1, 2]]), np.array([[2, 1, 0]], np.float32)
            scored = ScoredTree(DraftTree.chain([text[end - 1]]), range(1), end - 1, top_ids, top_logits, 2000)
            core.successors.learn(scored, text)
            request.observe(text[end : end + 4])
            found.append((tree, core.parameters.copy()))
        request.finish()
    return found


def test_compiled_kernels_do_what_their_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [[(7 * i + i // 9) % 23 + 1000 * (i % 11 == 0) for i in range(start, start + 46)] for start in (0, 5)]
    compiled = _learned(texts)
    monkeypatch.setattr(Kernel, "__call__", lambda self, *arguments: self.function(*arguments))
    for module in (core_module, successor_store):
        monkeypatch.setattr(module, "packed", lambda arguments: arguments)
    with np.errstate(over="ignore"):  # of hashes
        plain = _learned(texts)
    assert max(len(tree) for tree, _ in plain) > 8
    for (tree, parameters), (expected_tree, expected_parameters) in zip(compiled, plain, strict=True):
        assert (tree.token_ids, tree.parents) == (expected_tree.token_ids, expected_tree.parents)
        np.testing.assert_allclose(tree.values, expected_tree.values, rtol=1e-4)
        np.testing.assert_allclose(parameters, expected_parameters, rtol=1e-4, atol=1e-6)


def test_drafting_needs_no_numba_where_kernels_are_compiled() -> None:
    KernelLibrary.shared()
    code = f"import sys; sys.modules['numba'] = None; from {__name__} import _learned as f; assert f([[1, 2, 3] * 10])"
    subprocess.run([sys.executable, "-c", code], check=True)


needs_linker = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("c++"), reason="no C++ compiler, or not Linux, where wheels are linked"
)


@needs_linker
def test_linked_kernels_draft_the_same_bits_as_those_that_llvm_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [[(7 * i + i // 9) % 23 for i in range(60)], [(5 * i) % 19 for i in range(46)]]
    by_llvm = _learned(texts)
    objects = tmp_path / "kernels.o"
    objects.write_bytes(sealed(library.machine_code()))
    linked = KernelLibrary(link(objects, tmp_path / "kernels.so"))
    monkeypatch.setattr(KernelLibrary, "shared", lambda: linked)
    for module in (counts, datastore, learning, successors, tree_kernels):
        for each in vars(module).values():
            if isinstance(each, Kernel):
                monkeypatch.setattr(each, "_entry", None)
    for (draft, parameters), (expected, expected_parameters) in zip(_learned(texts), by_llvm, strict=True):
        assert (draft.token_ids, draft.parents, draft.values) == (expected.token_ids, expected.parents, expected.values)
        assert parameters.tobytes() == expected_parameters.tobytes()
    with pytest.raises(LookupError, match=r"No kernel counts\.forget was compiled"):
        linked.address("counts.forget")


def test_a_linked_library_of_these_sources_is_taken_and_no_other(nothing_compiled: Path) -> None:
    assert library.linked_library() is None
    (nothing_compiled / f"{CompileTarget.of_this_machine().name}-{'0' * 16}.so").touch()
    assert library.linked_library() is None
    own = (nothing_compiled / library.object_name(CompileTarget.of_this_machine())).with_suffix(".so")
    own.touch()
    assert library.linked_library() == own


def test_where_a_linked_library_cannot_be_loaded_llvm_takes_its_place(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (nothing_compiled / library.object_name(CompileTarget.of_this_machine())).with_suffix(".so")
    own.write_bytes(b"no library")
    monkeypatch.setattr(library, "machine_code", lambda: b"compiled here")
    monkeypatch.setattr(library, "_loaded_by_llvm", lambda code: lambda name: 1)
    assert KernelLibrary.found().address("counts.forget") == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DraftError, match=r"are not loaded \(.*\); install the wheel again, or pip install"):
        KernelLibrary.found()


def test_without_a_wheel_s_kernels_and_without_llvm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DraftError, match=r"^Nothing can be drafted: no wheel .*; pip install 'reader-edge\[jit\]'\.$"):
        library.machine_code()


def test_an_array_that_is_not_in_c_order_is_refused() -> None:
    store = DraftingCore(DraftConfig()).history.arrays
    with pytest.raises(ValueError, match="in C order"):
        counts.move_keys(np.zeros((4, 8), np.int64)[:, ::4], store.header, store.table)


def test_the_wheels_kernels_are_taken_before_those_of_the_cache(nothing_compiled: Path) -> None:
    name = library.object_name(CompileTarget.of_this_machine())
    (nothing_compiled / "cache" / name).write_bytes(sealed(b"compiled here"))
    assert library.machine_code() == b"compiled here"
    (nothing_compiled / name).write_bytes(sealed(b"from the wheel"))
    assert library.machine_code() == b"from the wheel"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"code", sealed(b"code")[:-1], sealed(b"other")[:5] + b"!" * 32])
def test_a_damaged_object_is_compiled_again(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """LLVM would end the process: power may fail before a new file's content is on the disk."""
    name = library.object_name(CompileTarget.of_this_machine())
    (nothing_compiled / name).write_bytes(content)
    (nothing_compiled / "cache" / name).write_bytes(content)
    monkeypatch.setattr(library, "_compiled", lambda path: b"compiled again")
    assert library.machine_code() == b"compiled again"


def test_kernels_of_other_sources_or_machines_are_not_taken(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_compiled", lambda path: b"compiled again")
    for target in TARGETS.values():
        if target != CompileTarget.of_this_machine():
            (nothing_compiled / library.object_name(target)).write_bytes(sealed(b"of another machine"))
    assert library.machine_code() == b"compiled again"
    source = nothing_compiled / "counts.py"
    source.write_text("changed")
    name = library.object_name(CompileTarget.of_this_machine())
    (nothing_compiled / name).write_bytes(sealed(b"from the wheel"))
    monkeypatch.setattr(library, "_SOURCES", (*library._SOURCES, source))
    assert library.machine_code() == b"compiled again"


def test_processes_that_start_together_compile_once(nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_compiled, others_wait = [], threading.Event()

    def compile_slowly(path: Path) -> bytes:
        num_compiled.append(1)
        others_wait.wait(0.2)
        path.write_bytes(sealed(b"code"))
        return b"code"

    monkeypatch.setattr(library, "_compiled", compile_slowly)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(library.machine_code())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(num_compiled)) == ([b"code"] * 3, 1)


def test_without_a_cache_kernels_are_compiled_each_time(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []
    monkeypatch.setattr(library, "cache_folder", lambda: None)

    def compile_there(path: Path) -> bytes:
        places.append(path)
        return b"code"

    monkeypatch.setattr(library, "_compiled", compile_there)
    assert library.machine_code() == b"code"
    assert not places[0].parent.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_kernels_that_others_could_write_are_left(nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = nothing_compiled / "cache" / library.object_name(CompileTarget.of_this_machine())
    kept.write_bytes(sealed(b"theirs"))
    kept.chmod(0o664)
    monkeypatch.setattr(library, "_compiled", lambda path: b"ours")
    with pytest.warns(UserWarning, match=r"can be written by its group or others, .*: `chmod go-w` it\.$"):
        assert library.machine_code() == b"ours"
    assert not kept.exists()
    kept.write_bytes(sealed(b"ours again"))
    kept.chmod(0o644)
    assert library.machine_code() == b"ours again"


@pytest.mark.parametrize("error", [PermissionError("compiling.lock"), NotImplementedError("flock")])
def test_without_a_lock_kernels_are_compiled_for_this_process_alone(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_: Path) -> None:
        raise error

    monkeypatch.setattr(library, "FileLock", refuse)
    monkeypatch.setattr(library, "_compiled", lambda path: str(path).encode())
    assert not library.machine_code().startswith(bytes(nothing_compiled))


@pytest.mark.parametrize("python", ["", "/nowhere/python"])
def test_without_a_python_nothing_is_drafted(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(DraftError, match=r"^Nothing can be drafted: .*\.$"):
        library.machine_code()


def test_a_compiler_that_fails_is_one_sentence(nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess(
        [], 1, b"", b"Traceback\n  ...\nModuleNotFoundError: No module named 'numba'\n\n"
    )
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(DraftError, match=r"its kernels were not compiled \(Module.+ No module named 'numba'\)\.$"):
        library.machine_code()


def test_a_folder_that_others_may_write_to_is_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = library.cache_folder.__wrapped__
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for mode in (0o777, 0o775, 0o757):
        tmp_path.chmod(mode)
        with pytest.warns(UserWarning, match=r"can be written by its group or others, .*: `chmod go-w` it\.$"):
            assert folder() is None
    tmp_path.chmod(0o755)
    assert folder() == tmp_path
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.warns(UserWarning, match=r"belongs to another user, .*: remove it\.$"):
        assert folder() is None
    monkeypatch.delattr(os, "getuid")  # Windows
    assert folder() == tmp_path


def test_an_object_without_a_kernel_names_it() -> None:
    with pytest.raises(LookupError, match=r"No kernel counts\.forget was compiled"):
        KernelLibrary.shared().address("counts.forget")


def test_cache_folder_is_the_environment_s_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = library.cache_folder.__wrapped__
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new"))
    assert folder() == tmp_path / "new"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert folder() is None
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: "~/.cache")  # no home is known
    monkeypatch.chdir(tmp_path)
    assert folder() is None
    assert not (tmp_path / "~").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_or_a_file_without_end_in_place_of_an_object_file_is_none(tmp_path: Path) -> None:
    pipe, endless = tmp_path / "pipe", tmp_path / "endless"
    os.mkfifo(pipe)
    endless.touch()
    os.truncate(endless, 1 << 30)
    assert library.intact(pipe) is None
    assert library.intact(endless) is None


def test_a_compiler_waits_for_another_and_takes_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reader_edge_runtime.drafting.machine_code import compiler  # which imports numba

    def wait(lock: Path) -> AbstractContextManager[None]:
        assert lock.parent == tmp_path
        (tmp_path / library.object_name(CompileTarget.of_this_machine())).write_bytes(sealed(b"code"))
        return nullcontext()

    monkeypatch.setattr(compiler, "FileLock", wait)
    monkeypatch.setattr(compiler, "compile_into", lambda *_: pytest.fail("compiled what is there"))
    compiler.compile_if_missing(tmp_path)


def test_a_compiler_does_without_locks_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reader_edge_runtime.drafting.machine_code import compiler  # which imports numba

    def refuse(_: Path) -> None:
        raise NotImplementedError("flock")

    folders: list[Path] = []
    monkeypatch.setattr(compiler, "FileLock", refuse)
    monkeypatch.setattr(compiler, "compile_into", folders.append)
    compiler.compile_if_missing(tmp_path)
    assert folders == [tmp_path]


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


def test_the_compiler_is_given_back_before_anybody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[KernelLoader] = []
    forgotten: list[bool] = []
    monkeypatch.setattr(FilePages, "forget", lambda self: forgotten.append(any(each.is_ready for each in loaders)))
    loaders.append(KernelLoader())
    loaders[0].wait()
    assert forgotten == [False]
    assert kernel_loader._compiler_pages().ranges or sys.platform != "linux"


def test_what_keeps_kernels_from_loading_is_raised_to_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> KernelLibrary:
        raise OSError("no compiler")

    monkeypatch.setattr(KernelLibrary, "shared", broken)
    loader = KernelLoader()
    monkeypatch.setattr(KernelLoader, "shared", lambda: loader)
    drafter = RetrievalDrafter(DraftConfig())
    with pytest.raises(OSError, match="no compiler"):
        drafter.wait()
    assert len(DraftedText(drafter, [1, 2, 1, 2, 1]).draft(8, 8)) == 1
