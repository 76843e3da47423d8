"""Which wheels of ONNX Runtime are installed. All of them own one folder, and overwrite each other's files."""

from collections.abc import Iterator

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings

# Those that have the module onnxruntime; a plugin has one of its own.
_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
    "onnxruntime-webgpu",
)
_MODULE = "onnxruntime/__init__.py"


def check_wheels(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether exactly one wheel is installed."""
    installed = _installed(surroundings)
    named = " and ".join(f"{name} {version}" for name, version in installed.items())
    if not installed:
        remedy = "pip install 'reader-edge[cpu]', or 'reader-edge[gpu]' for an NVIDIA GPU."
        yield Finding("wheels", Severity.BROKEN, "ONNX Runtime is not installed.", remedy)
    elif len(installed) > 1:
        yield Finding(
            "wheels",
            Severity.BROKEN,
            f"{named} are installed in one folder and overwrite each other's files.",
            f"pip uninstall {' '.join(installed)}, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'.",
        )
    else:
        yield Finding("wheels", Severity.WELL, f"{named} is the one ONNX Runtime here.")


def _installed(surroundings: Surroundings) -> dict[str, str]:
    """Versions by name, of wheels that own the module."""
    found = {name: surroundings.distribution(name) for name in _WHEELS}
    return {
        name: each.version
        for name, each in found.items()
        if each is not None and (each.files is None or _MODULE in map(str, each.files))
    }
