"""IREE's compiler and wheels: modules come whole, or one sentence says what is wrong or missing."""

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from reader_edge_runtime.errors import InstallationError, ProviderError
from reader_edge_runtime.execution.iree import compilation, wheel
from reader_edge_runtime.execution.iree.compilation import compile_module, module_key
from reader_edge_runtime.execution.iree.target_machine import TARGETS

TARGET = TARGETS["aarch64"]
Stand = Callable[[str], None]


@pytest.fixture
def mlir(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_bytes(b"rows: 256")
    return path


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Have a program take the compiler's place, which has read what it is given as `text`."""

    def stand_in(program: str) -> None:
        begin = "import os, sys, time; text = sys.stdin.buffer.read(); "
        monkeypatch.setattr(compilation, "compiler_command", lambda: [sys.executable, "-c", begin + program])

    return stand_in


def test_a_module_is_what_the_compiler_writes_of_mlir(mlir: Path, stand_in: Stand) -> None:
    stand_in("sys.stdout.buffer.write(text)")
    assert compile_module(mlir, TARGET) == mlir.read_bytes()


def test_keys_differ_by_graph_and_target(mlir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.mlir"
    other.write_bytes(b"rows: 512")
    keys = {module_key(path, target) for target in (TARGET, TARGETS["x86-64-v3"]) for path in (mlir, other)}
    assert len(keys) == 4


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="this system knows no priorities")
def test_what_is_compiled_aside_lets_other_work_go_first(mlir: Path, stand_in: Stand) -> None:
    stand_in("sys.stdout.write(str(os.nice(0)))")
    own = os.nice(0)
    assert int(compile_module(mlir, TARGET)) == own
    assert int(compile_module(mlir, TARGET, is_aside=True)) == 10 or own > 10


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("sys.stderr.write('note: x\\nm.mlir:1: error: no \\x1b[2J op\\nmore'); sys.exit(1)", r"\(no \[2J op\)"),
        ("sys.stderr.buffer.write(b'\\xff odd'); sys.exit(1)", r"\(\ufffd odd\)"),
        ("sys.exit(-9)", r"\(no reason given\)"),
        ("pass", r"\(no reason given\)"),
    ],
    ids=["error", "no text", "no word", "nothing"],
)
def test_what_it_refuses_is_one_sentence(program: str, reason: str, mlir: Path, stand_in: Stand) -> None:
    stand_in(program)
    with pytest.raises(ProviderError, match=rf"IREE cannot compile 'model\.mlir' for aarch64 {reason}\.$") as refused:
        compile_module(mlir, TARGET)
    assert str(refused.value).isprintable()


def test_a_compiler_that_takes_too_long_is_ended(mlir: Path, stand_in: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_MAX_S", 0.2)
    stand_in("time.sleep(600)")
    with pytest.raises(ProviderError, match=r"IREE took more than 0\.2 s to compile 'model\.mlir'\."):
        compile_module(mlir, TARGET)  # which waits for the process to end


def test_an_interrupt_ends_the_compiler(mlir: Path, stand_in: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess.Popen, "communicate", Mock(side_effect=KeyboardInterrupt))
    stand_in("time.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        compile_module(mlir, TARGET)  # which waits for the process to end


@pytest.mark.parametrize("command", [None, ["/nowhere/iree-compile"]], ids=["missing", "spoilt"])
def test_a_missing_compiler_is_named(command: list[str] | None, mlir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "compiler_command", lambda: command)
    error, sentence = (
        (InstallationError, "pip install 'reader-edge") if command is None else (ProviderError, "cannot be started")
    )
    with pytest.raises(error, match=sentence):
        compile_module(mlir, TARGET)


def test_a_process_that_ends_takes_its_compiler_and_the_thread_that_waits_along(
    mlir: Path, stand_in: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []
    has_begun = threading.Event()

    def register(end: Callable[[], None]) -> None:
        ends.append(end)
        has_begun.set()

    monkeypatch.setattr(atexit, "register", register)
    stand_in("time.sleep(600)")
    raised: list[BaseException] = []

    def compile_aside() -> None:
        try:
            compile_module(mlir, TARGET)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=compile_aside)
    thread.start()
    assert has_begun.wait(60)
    ends[0]()
    thread.join(60)
    assert list(map(type, raised)) == [SystemExit]  # without a word: no error of a compiler that was ended


def test_missing_wheels_are_named_with_their_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(wheel, "_version", wheel._version.__wrapped__)  # which keeps what it found
    assert (wheel.runtime_version(), wheel.compiler_version(), wheel.compiler_command()) == (None, None, None)
    assert wheel.iree_obstacle() == "IREE's runtime is missing: pip install 'reader-edge[iree]'."
    assert (wheel.compiler_obstacle() or "").endswith("pip install 'reader-edge[iree-export]'.")


def test_the_compiler_is_a_file_of_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "_version", lambda name: "3.13.0")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "none"), str(tmp_path)])
    monkeypatch.setattr(util, "find_spec", lambda name: spec)
    assert wheel.compiler_command() is None  # what is left of a wheel has none
    assert wheel.compiler_obstacle() is not None
    (tmp_path / "_mlir_libs").mkdir()
    for name in ("iree-compile", "iree-compile.exe"):
        (tmp_path / "_mlir_libs" / name).touch()
    assert [Path(each).stem for each in wheel.compiler_command() or ()] == ["iree-compile"]
    assert wheel.compiler_obstacle() is wheel.iree_obstacle() is None
