"""A source that cannot be read, or changes while it is exported, is told in one sentence, and nothing is left."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.folder.stored_tensors import stored_tensors
from reader_edge_export.trace.tree_config import trace_model
from reader_edge_runtime.errors import ExportError

FP32 = ExportOptions("fp32", check="none")


def export_during(change: Callable[[], object], source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export a model that something happens to, before its weights are read."""

    def traced(*arguments: Any) -> object:
        change()
        return trace_model(*arguments)

    monkeypatch.setattr("reader_edge_export.package_export.trace_model", traced)
    export_model(source, out, FP32)


def replace_weights(path: Path) -> None:
    """By a file of the same size, as a download does."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
@pytest.mark.parametrize("change", [Path.unlink, replace_weights, replace_by_pipe])
def test_weights_that_change_meanwhile_are_told(
    change: Callable[[Path], object], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = source / "model.safetensors"
    with pytest.raises(ExportError, match=r"model\.safetensors' changed while the model was exported: export it again"):
        export_during(lambda: change(weights), source, tmp_path / "out" / "package", monkeypatch)
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_become_shorter_do_not_end_the_process(source: Path) -> None:
    weights = source / "model.safetensors"
    tensor = stored_tensors(source)["model.embed_tokens.weight"]
    values = tensor.read()
    os.truncate(weights, 8)
    with pytest.raises(ExportError, match=r"changed while it was read: export it again when it is whole"):
        tensor.read()
    assert values.isfinite().all()  # in memory of their own


def test_other_files_beside_the_weights_may_change(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = source / "log.txt"
    log.write_text("exporting")
    export_during(lambda: log.write_text("still exporting"), source, tmp_path / "out", monkeypatch)
    assert (tmp_path / "out").is_dir()


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.getuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("name", ["model.safetensors", ""])
def test_a_source_that_the_user_may_not_read_is_told(name: str, source: Path, tmp_path: Path) -> None:
    place, mode = source / name, (source / name).stat().st_mode
    place.chmod(0)
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(ExportError, match=r"cannot be read \(Permission denied\)"):
            export_model(source, tmp_path / "out", FP32)
    finally:
        os.setresuid(0, 0, 0)
        place.chmod(mode)
    assert not (tmp_path / "out").exists()


def test_what_goes_wrong_in_reading_is_told_of_the_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("reader_edge_export.pipeline.find_source", fail)
    with pytest.raises(ExportError, match=r"' cannot be read \(Input/output error\): see to who may read it"):
        export_model(source, tmp_path / "out", FP32)


def test_a_file_that_the_limit_of_memory_forbids_to_map_is_told(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safetensors.safe_open", Mock(side_effect=MemoryError))
    with pytest.raises(ExportError, match=r"model.safetensors' cannot be loaded: .* bytes; raise the limit of memory"):
        stored_tensors(source)
