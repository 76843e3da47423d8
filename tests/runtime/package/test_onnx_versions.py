"""The versions an ONNX file is written in, of whatever bytes."""

from pathlib import Path

import pytest

from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.onnx_versions import onnx_versions


def test_the_demo_s_versions_are_read(demo_folder: Path) -> None:
    assert onnx_versions(demo_folder / "model.onnx") == (11, 24)


@pytest.mark.parametrize(
    ("content", "versions"),
    [
        (b"\x08\x0a", (10, 0)),
        (b"\x08\x0a\x42\x02\x10\x18", (10, 24)),
        (b"\x08\x0a\x42\x0b\x0a\x07ai.onnx\x10\x17\x42\x05\x0a\x01x\x10\x63", (10, 23)),
        (b"\x08\x0a\x0d1234\x09" + bytes(8), (10, 0)),
    ],
)
def test_ours_are_those_of_onnx_s_own_operators(content: bytes, versions: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    assert onnx_versions(tmp_path / "g.onnx") == versions


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\x42\x02\x10\x18", b"\x08\x0a\x42\x7f", b"\x0b", b"\x08" + b"\xff" * 11]
)
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(PackageError, match="is not an ONNX model"):
        onnx_versions(tmp_path / "g.onnx")
