"""A failed export leaves nothing behind, and what was there before as it was."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime.errors import ExportError, ParityError
from reader_edge_runtime.package.manifest import MANIFEST_NAME

FP32 = ExportOptions(precision="fp32")


def test_an_existing_folder_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    stages: list[str] = []
    with pytest.raises(ExportError, match="exists already"):
        export_model(source, tmp_path / "out", FP32, stages.append)
    assert stages == []


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ExportError, "is full"),
        (RuntimeError(f"write failed: {os.strerror(errno.ENOSPC)}"), ExportError, "is full"),
        (
            PermissionError(errno.EACCES, "denied", "part"),
            ExportError,
            r"cannot be written \(denied\): choose another folder.$",
        ),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (ParityError("The graph computes something else."), ParityError, "something else"),
    ],
)
@pytest.mark.parametrize("place", ["write_graph", "check"])
def test_a_failure_leaves_nothing_and_keeps_the_old_package(
    failure: BaseException,
    expected: type[BaseException],
    words: str | None,
    place: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise failure

    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST_NAME).write_text("old")
    if place == "write_graph":
        monkeypatch.setattr("reader_edge_export.package_export.write_graph", fail)
    else:
        monkeypatch.setattr("reader_edge_export.checks.package_check.figures_of", fail)
    with pytest.raises(expected, match=words):
        export_model(source, out, ExportOptions(precision="fp32", force=True))
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]
    assert (out / MANIFEST_NAME).read_text() == "old"


def test_a_graph_that_computes_something_else_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reader_edge_export.onnx_graph.graph_editor import GraphEditor
    from reader_edge_export.quantize.weight_storage import store_weights

    def store_wrong(editor: GraphEditor, *arguments: Any) -> None:
        norm = editor.graph.initializers["model.norm.weight"]
        assert norm.const_value is not None
        norm.const_value = ir.tensor(norm.const_value.numpy() * np.float32(1.001), name=norm.name)
        store_weights(editor, *arguments)

    monkeypatch.setattr("reader_edge_export.package_graph.store_weights", store_wrong)
    with pytest.raises(ParityError, match="differ by"):
        export_model(source, tmp_path / "out", FP32)
    assert not list(tmp_path.glob("out*"))
