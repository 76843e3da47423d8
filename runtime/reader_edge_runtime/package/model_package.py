"""The model package on disk: a folder with an ONNX graph, a tokenizer and a manifest that vouches for both."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from reader_edge_runtime.errors import IntegrityError, PackageError
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.manifest import MANIFEST_NAME, FileEntry, Manifest, sha256_of
from reader_edge_runtime.package.manifest_file import read_manifest_once
from reader_edge_runtime.package.pipeline_file import KEY_NAME, PIPELINE_NAME, read_pipeline_once
from reader_edge_runtime.untrusted.plain_file import check_plain_file

_MAX_NODES = 1 << 17  # with all functions unfolded; 100 layers have 10,000
_FOREIGN_OPERATOR = ("com.microsoft", "EPContext")  # compiled for one device, perhaps in a file of its own


class PackageFiles:
    """A package's folder, and its files as a checked manifest lists them."""

    def __init__(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        self.folder = folder
        self._files = files

    def path(self, name: str) -> Path:
        """Path of a file the manifest lists, in the package's folder, where it may be a link to a plain file.

        Raises PackageError for a file that is not listed, IntegrityError for one that is missing or not plain.
        """
        if name not in self._files:
            raise PackageError(f"The package '{self.folder}' lists no {name}: export the model again.")
        path = self.folder / name
        check_plain_file(path, IntegrityError, "export or copy the package again")
        return path

    def check_sizes(self) -> None:
        """Compare every file's size with the manifest. Raises IntegrityError."""
        for name, entry in self._files.items():
            path = self.path(name)
            num_bytes = path.stat().st_size
            if num_bytes != entry.num_bytes:
                raise IntegrityError(
                    f"'{path}' has {num_bytes} bytes instead of {entry.num_bytes}: export or copy the package again."
                )

    def check_files(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compare every file's size, then its checksum, with the manifest, then see what the graphs refer to.

        on_progress: called with bytes checked and bytes in all. Raises IntegrityError, or PackageError for a graph that
        reads files the manifest does not vouch for, or that may never end.
        """
        self.check_sizes()
        num_total = sum(entry.num_bytes for entry in self._files.values())
        num_done = 0
        for name, entry in self._files.items():
            path = self.path(name)
            if sha256_of(path) != entry.sha256:
                raise IntegrityError(f"'{path}' differs from its checksum: export or copy the package again.")
            num_done += entry.num_bytes
            if on_progress is not None:
                on_progress(num_done, num_total)
        for name in self._files:
            if name.endswith(".onnx"):
                self._check_graph(self.path(name))

    def _check_graph(self, path: Path) -> None:
        graph = GraphFile.read(path)
        unlisted = graph.external_files - self._files.keys()
        if unlisted:
            raise PackageError(
                f"'{path}' reads {min(unlisted)!r:.80}, which the manifest does not list: do not trust this package."
            )
        is_endless = graph.has_unbounded_work() or graph.num_unfolded_nodes() > _MAX_NODES
        if is_endless or _FOREIGN_OPERATOR in graph.operators:
            raise PackageError(
                f"'{path}' holds endless loops, branches, compiled code or functions without end, which no exported "
                "model has: do not trust this package."
            )
        for name in graph.external_files:
            self._check_beside(path, self.path(name))

    def _check_beside(self, graph: Path, weights: Path) -> None:
        """ONNX Runtime reads weights below the folder of the graph or, where that is a link, of what it leads to."""
        found = weights.resolve()
        if not any(found.is_relative_to(folder.resolve()) for folder in (self.folder, graph.resolve().parent)):
            raise PackageError(
                f"'{weights}' is a link to '{found}', which is in another folder than the graph that reads it: copy "
                "the package, links followed (cp -rL)."
            )


class ModelPackage(PackageFiles):
    """An opened package: its folder and its checked manifest.

    manifest_sha256: in hex, of the very bytes that the manifest is from; None for one that is from no file.
    addresses: of a pipeline, whose last stage this is, where its other stages listen; empty for any other package.
    pipeline_sha256: in hex, of the pipeline.json that they were read from; None for any other package.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        manifest_sha256: str | None = None,
        addresses: tuple[str, ...] = (),
        pipeline_sha256: str | None = None,
    ) -> None:
        super().__init__(folder, manifest.files)
        self.manifest = manifest
        self.manifest_sha256 = manifest_sha256
        self.addresses = addresses
        self.pipeline_sha256 = pipeline_sha256

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "ModelPackage":
        """Read and check the manifest, not the files. Raises PackageError (no such folder) or ManifestError.

        folder: of a package, or of a pipeline, whose last stage is opened.
        """
        folder = Path(folder)
        if not (folder / PIPELINE_NAME).exists():
            return cls(folder, *read_manifest_once(folder))
        addresses, sha256 = read_pipeline_once(folder)
        last = folder / str(len(addresses) + 1)
        manifest, manifest_sha256 = read_manifest_once(last)
        if manifest.stage is None or not manifest.stage.is_last or manifest.stage.number != len(addresses) + 1:
            raise PackageError(f"'{last}' is not the last of {len(addresses) + 1} stages: split the model again.")
        return cls(last, manifest, manifest_sha256, addresses, sha256)

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 (hex) of the manifest, as far as it is from a file, and of all files that it lists."""
        own = {} if self.manifest_sha256 is None else {MANIFEST_NAME: self.manifest_sha256}
        return own | {name: entry.sha256 for name, entry in self.manifest.files.items()}

    @property
    def key_path(self) -> Path | None:
        """Beside a stage, the file with the key that the boxes of its pipeline share; None without one."""
        path = self.folder.parent / KEY_NAME
        return path if self.manifest.stage is not None and path.exists() else None

    def fingerprint(self) -> bytes:
        """SHA-256 over the checksums of all files that its answers depend on."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.manifest.model_files.items())]
        return hashlib.sha256("".join(lines).encode()).digest()
