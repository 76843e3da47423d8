"""The installed wheel of ONNX Runtime. Who needs onnxruntime imports it from here, behind the check."""

import os
from importlib import metadata

from reader_edge_runtime.errors import InstallationError


def installed_wheel() -> str:
    """Name and version of the one installed ONNX Runtime wheel, found out without importing it.

    Both wheels own the same folder and break each other silently, hence InstallationError with neither or both.
    """
    versions = {}
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if not versions:
        raise InstallationError("ONNX Runtime is missing: pip install 'reader-edge[cpu]' (or 'reader-edge[gpu]').")
    if len(versions) > 1:
        raise InstallationError(
            "onnxruntime and onnxruntime-gpu are both installed and break each other: "
            "pip uninstall both, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'."
        )
    return " ".join(next(iter(versions.items())))


INSTALLED_WHEEL = installed_wheel()

# Else importing onnxruntime writes a device id and a store of events to the user's cache folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort  # noqa: E402

__all__ = ["INSTALLED_WHEEL", "installed_wheel", "ort"]
