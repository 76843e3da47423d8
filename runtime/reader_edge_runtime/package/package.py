"""The model package on disk: a folder with an ONNX graph, a tokenizer and a manifest that vouches for both.

The manifest is the one truth that the exporter writes and the runtime checks. Graph contract of format version 1
(B sequences, N nodes, M visible KV rows, R logit rows, S slot rows, H KV heads, D head size, V vocabulary, K top_k):

    input_ids      int64 (B, N)          logits                 float32 (B, R, V)
    position_ids   int64 (B, N)          top_ids, top_logits    int64, float32 (B, R, K), best first, equals by id
    tree_mask      float32 (B, 1, N, M)  present_key.{layer}    kv_dtype (B, H, S, D), bound to the past's memory
    tree_mask_sliding, the same shape    present_value.{layer}  the same
        (only with a sliding_window)
    write_pos      int64 (B,)
    logit_rows     int64 (B, R)             log_sum_exp            float32 (B, R), only in packages for devices
    past_key.{layer}, past_value.{layer}  kv_dtype (B, H, S, D)

Masks are added to the attention scores: 0 where a node may look, MASKED elsewhere.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import IntegrityError, ManifestError, PackageError

MANIFEST_NAME = "reader_edge.json"
GRAPH_NAME = "model.onnx"
WEIGHTS_NAME = "model.onnx.data"
COMMIT_NAME = "commit.onnx"  # only in packages for devices; see reader_edge_export.commit_graph
TOKENIZER_NAME = "tokenizer.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
FORMAT_VERSION = 1
MASKED = -1e30

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int4")
HALF_PRECISIONS = {"fp16": "float16", "bf16": "bfloat16"}  # and the KV cache's type
ATTENTIONS = ("exact", "fast", "portable")

_MAX_MANIFEST_BYTES = 1 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 (hex) of one file of the package."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a package says of itself.

    architecture: `model_type` of the source config, e.g. "llama".
    num_heads, num_kv_heads, head_dim, num_layers, vocab_size: sizes of the graph's tensors.
    top_k: successors the graph reports per logit row.
    max_context: tokens of prompt and answer together.
    sliding_window: tokens a windowed layer sees, its own included; None without such layers.
    precision: one of PRECISIONS. attention: one of ATTENTIONS.
    kv_dtype: numpy name of the KV cache's type.
    eos_token_ids: tokens that end an answer. bos_token_id: for chat templates; None without.
    source_name: what was exported. source_fingerprint: SHA-256 over its config and weight files.
    exported_with: package name -> version. checks: measured figures of the export's own checks.
    files: file name -> FileEntry, for every file but the manifest.
    """

    architecture: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    vocab_size: int
    top_k: int
    max_context: int
    sliding_window: int | None
    precision: str
    attention: str
    kv_dtype: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    source_name: str
    source_fingerprint: str
    exported_with: Mapping[str, str]
    checks: Mapping[str, float]
    files: Mapping[str, FileEntry]

    def past_names(self) -> list[str]:
        """Names of the graph's KV inputs, key and value of each layer in turn."""
        return [f"past_{kind}.{layer}" for layer in range(self.num_layers) for kind in ("key", "value")]

    def present_names(self) -> list[str]:
        """Names of the graph's KV outputs, in the order of `past_names`."""
        return [name.replace("past_", "present_") for name in self.past_names()]


class ModelPackage:
    """An opened package: its folder and its checked manifest."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "ModelPackage":
        """Read and check the manifest; the files are checked by `check_files`.

        Raises PackageError (no such folder) or ManifestError.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise PackageError(f"No model package at '{folder}': give a folder written by 'reader-edge export'.")
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise ManifestError(f"'{folder}' holds no {MANIFEST_NAME}: give a folder written by 'reader-edge export'.")
        num_bytes = path.stat().st_size
        if num_bytes > _MAX_MANIFEST_BYTES:
            raise ManifestError(f"'{path}' has {num_bytes} bytes, more than a manifest may have: export again.")
        try:
            fields = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"'{path}' is not valid JSON ({error}): export the model again.") from None
        return cls(folder, _parse(fields, path))

    def path(self, name: str) -> Path:
        """Path of a file the manifest lists, inside the package's folder."""
        if name not in self.manifest.files:
            raise PackageError(f"The package '{self.folder}' lists no {name}: export the model again.")
        path = (self.folder / name).resolve()
        if path.parent != self.folder.resolve():
            raise ManifestError(f"{name} in '{self.folder}' leads outside its folder: do not trust this package.")
        return path

    def check_files(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compare every file's size, then its checksum, with the manifest.

        on_progress: called with bytes checked and bytes in all. Raises IntegrityError.
        """
        for name, entry in self.manifest.files.items():
            path = self.path(name)
            if not path.is_file():
                raise IntegrityError(f"'{path}' is missing: export or copy the package again.")
            num_bytes = path.stat().st_size
            if num_bytes != entry.num_bytes:
                raise IntegrityError(
                    f"'{path}' has {num_bytes} bytes instead of {entry.num_bytes}: export or copy the package again."
                )
        num_total = sum(entry.num_bytes for entry in self.manifest.files.values())
        num_done = 0
        for name, entry in self.manifest.files.items():
            if sha256_of(self.path(name)) != entry.sha256:
                raise IntegrityError(
                    f"'{self.path(name)}' differs from its checksum: export or copy the package again."
                )
            num_done += entry.num_bytes
            if on_progress is not None:
                on_progress(num_done, num_total)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> FileEntry:
    """FileEntry of a file as it is now."""
    return FileEntry(path.stat().st_size, sha256_of(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into `folder`, last of the package's files; it appears whole or not at all."""
    partial = folder / (MANIFEST_NAME + ".partial")
    fields = {"format": "reader-edge", "format_version": FORMAT_VERSION, **asdict(manifest)}
    partial.write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(folder / MANIFEST_NAME)


def _parse(fields: object, path: Path) -> Manifest:
    if not isinstance(fields, dict) or fields.get("format") != "reader-edge":
        raise ManifestError(f"'{path}' is not a reader-edge manifest: export the model again.")
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        remedy = "upgrade reader-edge" if isinstance(version, int) and version > FORMAT_VERSION else "export it again"
        raise ManifestError(f"'{path}' has format version {version!r}, this runtime reads {FORMAT_VERSION}: {remedy}.")
    read = _FieldReader(fields, path)
    return Manifest(
        architecture=read.text("architecture"),
        num_heads=read.size("num_heads", 1 << 12),
        num_kv_heads=read.size("num_kv_heads", 1 << 12),
        head_dim=read.size("head_dim", 1 << 12),
        num_layers=read.size("num_layers", 1 << 12),
        vocab_size=read.size("vocab_size", 1 << 24),
        top_k=read.size("top_k", 256),
        max_context=read.size("max_context", 1 << 28),
        sliding_window=None if fields.get("sliding_window") is None else read.size("sliding_window", 1 << 28),
        precision=read.choice("precision", PRECISIONS),
        attention=read.choice("attention", ATTENTIONS),
        kv_dtype=read.choice("kv_dtype", ("float32", *HALF_PRECISIONS.values())),
        eos_token_ids=tuple(read.token_ids("eos_token_ids")),
        bos_token_id=None if fields.get("bos_token_id") is None else read.size("bos_token_id", 1 << 24, least=0),
        source_name=read.text("source_name"),
        source_fingerprint=read.text("source_fingerprint"),
        exported_with=read.mapping("exported_with", str),
        checks=read.mapping("checks", (int, float)),
        files=read.files(),
    )


class _FieldReader:
    """Typed access to a manifest's fields; every error names the field and its value."""

    def __init__(self, fields: dict[str, Any], path: Path) -> None:
        self._fields = fields
        self._path = path

    def _error(self, name: str, value: object) -> ManifestError:
        return ManifestError(f"'{self._path}' has an unusable {name} ({value!r:.80}): export the model again.")

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or len(value) > 4096:
            raise self._error(name, value)
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise self._error(name, value)
        return value

    def size(self, name: str, most: int, least: int = 1) -> int:
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._error(name, value)
        return value

    def token_ids(self, name: str) -> list[int]:
        values = self._fields.get(name)
        if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 1 << 24 for v in values):
            raise self._error(name, values)
        return values

    def mapping(self, name: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
        values = self._fields.get(name)
        if not isinstance(values, dict) or not all(isinstance(v, kind) for v in values.values()):
            raise self._error(name, values)
        return values

    def files(self) -> dict[str, FileEntry]:
        entries = {}
        for name, entry in self.mapping("files", dict).items():
            num_bytes, sha256 = entry.get("num_bytes"), entry.get("sha256")
            if not _FILE_NAME.fullmatch(name):
                raise ManifestError(f"'{self._path}' lists {name!r:.80}, which is not a plain file name in its folder.")
            if type(num_bytes) is not int or num_bytes < 0:
                raise self._error(f"size of {name}", num_bytes)
            if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
                raise self._error(f"checksum of {name}", sha256)
            entries[name] = FileEntry(num_bytes, sha256)
        for name in (GRAPH_NAME, TOKENIZER_NAME):
            if name not in entries:
                raise ManifestError(f"'{self._path}' lists no {name}: export the model again.")
        return entries
