"""Copies of the demo package that tests may change or break."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from reader_edge_runtime.package.manifest import MANIFEST_NAME

CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


class PackageCopy:
    """A package in a folder of its own, whose manifest can be kept true to its files, or not."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = Path(shutil.copytree(source, folder))

    def read_manifest(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads((self.folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        return fields

    def change_manifest(self, **changes: object) -> None:
        fields = self.read_manifest() | changes
        (self.folder / MANIFEST_NAME).write_text(json.dumps(fields), encoding="utf-8")

    def write_file(self, name: str, data: bytes) -> None:
        """Write a file and vouch for it in the manifest."""
        (self.folder / name).write_bytes(data)
        entry = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self.change_manifest(files=self.read_manifest()["files"] | {name: entry})
