"""What builds the native kernels, without building them: which tools it asks for, and what it says where it cannot."""

import os
import sys
from pathlib import Path

import pytest

from native.build_library import BuildError, build, build_requirements, why_impossible


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a compiler and no other tool."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", f"{sys.executable} -w")
    monkeypatch.delenv("CMAKE_GENERATOR", raising=False)


@pytest.mark.skipif(sys.platform == "win32", reason="Visual Studio brings what it needs")
def test_tools_that_are_missing_come_from_pypi(bare: None) -> None:
    assert why_impossible() is None
    assert build_requirements() == ["cmake>=3.18", "ninja>=1.10"]


@pytest.mark.skipif(sys.platform == "win32", reason="Visual Studio brings what it needs")
@pytest.mark.parametrize(
    ("version", "has_it"), [("3.17.9", False), ("3.18.0", True), ("4.4.5", True), ("strange", False)]
)
def test_an_old_cmake_is_a_missing_one(version: str, has_it: bool, bare: None, tmp_path: Path) -> None:
    script = tmp_path / "cmake"
    script.write_text(f"#!/bin/sh\necho cmake version {version}\n")
    script.chmod(0o755)
    assert ("cmake>=3.18" not in build_requirements()) == has_it


@pytest.mark.skipif(sys.platform == "win32", reason="CMake looks for Visual Studio itself")
@pytest.mark.parametrize("compiler", ["/nowhere", ""])
def test_without_a_compiler_one_sentence_says_so_and_nothing_is_fetched(
    compiler: str, bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert build_requirements() == []
    with pytest.raises(BuildError, match=r"^No C\+\+ compiler was found \([^)]+\)\.$"):
        build(tmp_path / "out", tmp_path / "objects")
    assert os.listdir(tmp_path) == []


def test_other_processors_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert why_impossible() == "There are no native kernels for riscv64 processors."
    assert build_requirements() == []


def test_a_cmake_that_cannot_start_is_reported(bare: None, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cmake cannot be started"):
        build(tmp_path / "out", tmp_path / "objects")
