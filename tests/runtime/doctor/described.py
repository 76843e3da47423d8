"""Machines and installations that a test describes: files of /proc and /sys, wheels, modules."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from reader_edge_runtime.doctor.environment import Environment


def described(root: Path, **changes: Any) -> Environment:
    """A machine of eight cores, on which all is well but for the changes."""
    sound = Environment(
        root=root / "machine",
        environ=dict(os.environ),
        search_path=tuple(filter(None, sys.path)),
        system="Linux",
        machine="x86_64",
        num_cores=8,
        num_allowed_cores=8,
        cache=root / "cache",
    )
    return replace(sound, **changes)


def write(root: Path, **files: str) -> None:
    """Write files of the machine; in their names, "__" is the separator of folders."""
    for name, text in files.items():
        path = root / "machine" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")


def install(site: Path, name: str, version: str, code: str | None = None) -> tuple[str, ...]:
    """A wheel that owns the module onnxruntime, with this code in it if it is given. Returns a search path."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="ascii")
    (info / "RECORD").write_text("onnxruntime/__init__.py,,\n", encoding="ascii")
    if code is not None:
        (site / "onnxruntime").mkdir(exist_ok=True)
        (site / "onnxruntime" / "__init__.py").write_text(code, encoding="ascii")
    return (str(site), *filter(None, sys.path))
