"""Numbers that a package's definitions and the native kernels share have one home."""

from pathlib import Path

from reader_edge_export.onnx_graph.shared_constants import header

NATIVE = Path(__file__).parents[2] / "native" / "src"


def test_the_header_of_the_kernels_is_what_the_definitions_say() -> None:
    assert (NATIVE / "shared_constants.h").read_text(encoding="utf-8") == header()
