"""The compiler of kernels: one of a machine at a time, whoever started it."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from reader_edge_runtime.drafting.machine_code import compiler, library
from reader_edge_runtime.drafting.machine_code.compile_target import CompileTarget
from reader_edge_runtime.drafting.machine_code.library import sealed


def test_a_compiler_waits_for_one_whose_parent_was_killed_and_takes_what_that_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(lock: Path) -> AbstractContextManager[None]:
        assert lock.parent == tmp_path
        (tmp_path / library.object_name(CompileTarget.of_this_machine())).write_bytes(sealed(b"code"))
        return nullcontext()

    monkeypatch.setattr(compiler, "FileLock", wait)
    monkeypatch.setattr(compiler, "compile_into", lambda *_: pytest.fail("compiled what is there"))
    compiler.compile_if_missing(tmp_path)


def test_a_compiler_does_without_locks_where_a_file_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise NotImplementedError("flock")

    folders: list[Path] = []
    monkeypatch.setattr(compiler, "FileLock", refuse)
    monkeypatch.setattr(compiler, "compile_into", folders.append)
    compiler.compile_if_missing(tmp_path)
    assert folders == [tmp_path]
