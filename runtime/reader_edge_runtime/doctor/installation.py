"""What is installed here and on what, for bug reports: no check, no network, and no engine is started."""

import platform
import re
from importlib import metadata
from typing import Any

from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, library_digest, native_instructions
from reader_edge_runtime.machine.processor import num_allowed_cores, num_usable_cores, processor_name
from reader_edge_runtime.package.manifest_file import FORMAT_VERSION

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installation_facts(version: str) -> dict[str, Any]:
    """By names that stay, ready for JSON. version: of reader-edge."""
    try:
        kernels: dict[str, Any] = {"instructions": native_instructions(), "all": instructions_here()}
    except InstallationError as error:
        kernels = {"error": str(error)}
    return {
        "reader_edge": version,
        "package_format": FORMAT_VERSION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": installed_versions(),
        "native_kernels": kernels | {"sha256": library_digest()},
        "system": platform.platform(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "cores": num_allowed_cores(),
        "usable_cores": num_usable_cores(),
    }


def installed_versions() -> dict[str, str]:
    """Of what reader-edge and its extras require, as far as it is here; {} where reader-edge runs uninstalled."""
    try:
        required = metadata.requires("reader-edge") or []
    except metadata.PackageNotFoundError:
        return {}
    names = sorted({found[0].lower() for each in required if (found := _NAME.match(each))} - {"reader-edge"})
    return {name: version for name in names if (version := _version(name))}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
