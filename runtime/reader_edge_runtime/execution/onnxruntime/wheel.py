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

try:
    import onnxruntime as ort

    ort.InferenceSession  # noqa: B018  (what is left of a folder may be imported, and has nothing)
except (ImportError, AttributeError) as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise InstallationError(f"{INSTALLED_WHEEL} cannot be loaded ({reason:.200}): run `reader-edge doctor`.") from error

__all__ = ["INSTALLED_WHEEL", "installed_wheel", "ort"]
