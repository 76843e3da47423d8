"""The native library where it is missing, or damaged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.onnxruntime import native


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where it is looked for; nothing is there."""
    path = tmp_path / "reader_edge_native.so"
    monkeypatch.setattr(native, "_LIBRARY", path)
    native.native_library.cache_clear()
    yield path
    native.native_library.cache_clear()


def test_nothing_needs_the_library(library: Path) -> None:
    assert native.native_library() is None
    assert native.native_instructions() is None
    assert native.instructions_here() == []


def test_a_damaged_library_is_one_sentence(library: Path) -> None:
    library.write_bytes(b"no library")
    with pytest.raises(
        InstallationError, match=r"cannot be loaded \(.*\): install reader-edge again, or .*--no-native"
    ):
        native.native_library()
