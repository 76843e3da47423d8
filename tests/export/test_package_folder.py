"""The folder of an export appears whole or not at all, also after exports that were killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reader_edge_export.package_folder import check_target, new_package
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import MANIFEST_NAME


@pytest.fixture
def dead_process_id() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write_package(folder: Path, content: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).write_text(content)


def test_the_next_export_clears_what_killed_ones_left(tmp_path: Path, dead_process_id: int) -> None:
    write_package(tmp_path / f".out.partial-{dead_process_id}-1", "half")
    write_package(tmp_path / f".out.old-{dead_process_id}-1", "older")
    write_package(tmp_path / f".out.partial-{os.getppid()}-1", "of a living process")
    write_package(tmp_path / "out", "old")
    with new_package(tmp_path / "out", force=True) as partial:
        write_package(partial, "new")
    assert sorted(os.listdir(tmp_path)) == [f".out.partial-{os.getppid()}-1", "out"]
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "new"


def test_a_package_that_a_killed_export_had_moved_away_comes_back(tmp_path: Path, dead_process_id: int) -> None:
    write_package(tmp_path / f".out.old-{dead_process_id}-1", "the only copy")
    with pytest.raises(ExportError, match="exists already"), new_package(tmp_path / "out", force=False):
        pass
    with pytest.raises(RuntimeError, match="fails"), new_package(tmp_path / "out", force=True):
        raise RuntimeError("fails")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "the only copy"


@pytest.mark.parametrize("name", ["out\udcff", "\x1b[2J"], ids=["no text", "an escape sequence"])
def test_a_name_that_cannot_be_shown_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="choose another folder"):
        check_target(tmp_path / name, force=False)
