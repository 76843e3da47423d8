"""The folder OUT.training: nothing in it leads out of it, and nothing that lies in its way is written over."""

import os
from pathlib import Path

import pytest

from reader_edge_export.package.package_folder import training_folder
from reader_edge_runtime.errors import ExportError


@pytest.mark.parametrize("name", ["checkpoint.bin", "answers-0001.bin"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_what_is_no_plain_file_is_refused_before_anything_is_written(name: str, kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "out.training" / name, tmp_path / "other"
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    if kind == "link":
        other.write_bytes(b"mine")
    for _ in range(2):  # the lock is free again
        with pytest.raises(ExportError, match=f"{name}' is no plain file"), training_folder(tmp_path / "out"):
            pass
    assert not other.exists() or other.read_bytes() == b"mine"


@pytest.mark.parametrize("is_link", [False, True])
def test_what_lies_in_the_folders_way_stays(is_link: bool, tmp_path: Path) -> None:
    path = tmp_path / "out.training"
    if is_link:
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"mine")
    with pytest.raises(ExportError, match="is in the way"), training_folder(tmp_path / "out"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["out.training"]


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "out.training").symlink_to("large disk")
    with training_folder(tmp_path / "out") as folder:
        assert folder.samefile(tmp_path / "large disk")
