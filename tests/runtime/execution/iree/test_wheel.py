"""Which wheels of IREE are here, and what is said where one is missing."""

from importlib import metadata, util
from pathlib import Path
from types import SimpleNamespace

import pytest

from reader_edge_runtime.execution.iree import wheel


def test_missing_wheels_are_told_with_their_extras(monkeypatch: pytest.MonkeyPatch) -> None:
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
