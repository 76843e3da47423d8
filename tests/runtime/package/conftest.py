"""A package that is whole, of a graph that computes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime.package.manifest import file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from tests.fake_target import make_manifest
from tests.runtime.package.onnx_bytes import GRAPH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(GRAPH)
    (folder / "tokenizer.json").write_bytes(b"{}")
    files = {path.name: file_entry(path) for path in folder.iterdir()}
    write_manifest(folder, replace(make_manifest(), files=files))
    return folder
