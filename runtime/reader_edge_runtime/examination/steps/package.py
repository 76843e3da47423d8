"""Whether a package's files are what its manifest says, and in which versions of ONNX its graph is written."""

from collections.abc import Iterator
from pathlib import Path

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.package.manifest import GRAPH_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.onnx_versions import onnx_versions

_MOST_HASHED = 1 << 30  # bytes that take about a second


def check_package(folder: Path) -> Iterator[Finding]:
    """Raises PackageError for what is wrong, in its own words."""
    package = ModelPackage.open(folder)
    manifest = package.manifest
    versions = onnx_versions(package.path(GRAPH_NAME))
    if manifest.num_bytes <= _MOST_HASHED:
        package.check_files()
        yield Finding("package", Severity.WELL, f"{_told(manifest)}; its files are what the manifest says.")
    else:
        package.check_sizes()
        found = f"{_told(manifest)}; its files have the right sizes, and were too large to read here."
        yield Finding("package", Severity.NOTE, found, "`reader-edge info` compares every checksum.")
    yield Finding("package", Severity.WELL, f"Its graph is ONNX IR {versions.ir}, opset {versions.opset}.")


def _told(manifest: Manifest) -> str:
    size = f"{manifest.num_bytes / 1e6:.1f} MB"
    return f"A {manifest.architecture} model, {size} in {manifest.precision} with {manifest.attention} attention"
