"""The model package on disk: a folder with an ONNX graph, a tokenizer and a manifest that vouches for both."""

import hashlib
import os
from pathlib import Path

from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.manifest_file import read_manifest
from reader_edge_runtime.package.package_files import PackageFiles
from reader_edge_runtime.package.pipeline_file import KEY_NAME, PIPELINE_NAME, read_pipeline


class ModelPackage(PackageFiles):
    """An opened package: its folder and its checked manifest.

    addresses: of a pipeline, whose last stage this is, where its other stages listen; empty for any other package.
    """

    def __init__(self, folder: Path, manifest: Manifest, addresses: tuple[str, ...] = ()) -> None:
        super().__init__(folder, manifest.files)
        self.manifest = manifest
        self.addresses = addresses

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "ModelPackage":
        """Read and check the manifest, not the files. Raises PackageError (no such folder) or ManifestError.

        folder: of a package, or of a pipeline, whose last stage is opened.
        """
        folder = Path(folder)
        if not (folder / PIPELINE_NAME).exists():
            return cls(folder, read_manifest(folder))
        addresses = read_pipeline(folder)
        last = folder / str(len(addresses) + 1)
        manifest = read_manifest(last)
        if manifest.stage is None or not manifest.stage.is_last or manifest.stage.number != len(addresses) + 1:
            raise PackageError(f"'{last}' is not the last of {len(addresses) + 1} stages: split the model again.")
        return cls(last, manifest, addresses)

    @property
    def key_path(self) -> Path | None:
        """Beside a stage, the file with the key that the boxes of its pipeline share; None without one."""
        path = self.folder.parent / KEY_NAME
        return path if self.manifest.stage is not None and path.exists() else None

    def fingerprint(self) -> bytes:
        """SHA-256 over the checksums of all files that its answers depend on."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.manifest.model_files.items())]
        return hashlib.sha256("".join(lines).encode()).digest()
