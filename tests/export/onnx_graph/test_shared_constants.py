"""Numbers that a package's definitions and the native kernels share have one home."""

from reader_edge_export.onnx_graph.shared_constants import header
from tests.conftest import ROOT


def test_the_header_of_the_kernels_is_what_the_definitions_say() -> None:
    assert (ROOT / "native" / "src" / "shared_constants.h").read_text(encoding="utf-8") == header()
