"""What a package of a forecasting model says of itself, and the contract of its graphs.

The contract is that of `reader_edge_runtime.package.manifest` with attention "exact" and caches in float32, but for
this (P values of a patch, G numbers of each of them, see `PatchDistribution`):

    patches  float32 (B, N, P), in place of input_ids        parameters  float32 (B, R, G * P), in place of logits

A package has a model and, beside it, perhaps a small one that drafts.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import ManifestError, PackageError
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import FileEntry
from reader_edge_runtime.package.manifest_fields import (
    is_figure,
    is_text,
    mapping_of,
    read_fields,
    read_files,
    require,
    size_within,
)
from reader_edge_series.patch_distribution import num_parameters

SERIES_MANIFEST_NAME = "reader_edge_series.json"
MODEL_NAME, DRAFT_NAME = "series.onnx", "series_draft.onnx"  # weights lie beside them, in NAME.data

SIZES_PROPERTY = "reader_edge.patch_sizes"  # of a graph's metadata: what `PatchSizes.to_json` gives
MOST_DRAFTS = 6  # patches in a row

_FORMAT, _VERSION = "reader-edge-series", 1
_SIZES = {
    "num_layers": 1 << 10,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "num_patches": 64,
    "patch_size": 1 << 12,
    "window": 1 << 20,
    "min_prompt": 1 << 20,
    "max_prompt": 1 << 20,
    "max_context": 1 << 20,
}
_PROMPT_SIZES = ("min_prompt", "max_prompt", "max_context")
_REMEDY = "give a folder written by 'reader-edge series export'"


@dataclass(frozen=True, slots=True)
class PatchSizes:
    """Of one graph, which is a `KvLayout`. num_patches: F, how many coming patches a node tells of. patch_size: P.

    window: how many patches a node sees, its own included. min_prompt, max_prompt: patches of a series' past that a
    forecast goes on from. max_context: those and the forecast together.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_patches: int
    patch_size: int
    window: int
    min_prompt: int
    max_prompt: int
    max_context: int

    @property
    def kv_dtype(self) -> str:
        return "float32"

    @property
    def cached_layers(self) -> Mapping[int, Layer]:
        return {number: Layer.attention(self.num_kv_heads, self.head_dim) for number in range(self.num_layers)}

    @property
    def kv_row_bytes(self) -> int:
        return 2 * 4 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def max_horizon(self) -> int:
        """Values that a forecast has at most."""
        return (self.max_context - self.max_prompt - MOST_DRAFTS - 1) * self.patch_size

    def to_json(self) -> str:
        """All sizes, as a graph's metadata have them."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def num_outputs(self) -> int:
        """Numbers that a node gives, G * P."""
        return num_parameters(self.num_patches) * self.patch_size


@dataclass(frozen=True, slots=True)
class SeriesManifest:
    """model, draft: sizes of the two graphs. checks, exported_with, files: as in `Manifest`."""

    model: PatchSizes
    draft: PatchSizes | None
    source_name: str
    checks: Mapping[str, float]
    exported_with: Mapping[str, str]
    files: Mapping[str, FileEntry]


def write_series_manifest(folder: Path, manifest: SeriesManifest) -> None:
    """Write it into `folder`, last of the package's files."""
    fields = {"format": _FORMAT, "format_version": _VERSION, **asdict(manifest)}
    write_file(folder / SERIES_MANIFEST_NAME, (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode())


def read_series_manifest(folder: Path) -> SeriesManifest:
    """Raises PackageError (no such folder) or ManifestError."""
    path = folder / SERIES_MANIFEST_NAME
    if not folder.is_dir():
        raise PackageError(f"No forecasting model at '{folder}': {_REMEDY}.")
    if not path.exists() and not path.is_symlink():
        raise ManifestError(f"'{folder}' holds no {SERIES_MANIFEST_NAME}: {_REMEDY}.")
    fields = read_fields(path, _FORMAT)
    version = fields.get("format_version")
    require(size_within(_VERSION, _VERSION)(version), path, "format_version", version)
    for name, is_usable in (
        ("source_name", is_text),
        ("checks", mapping_of(is_figure)),
        ("exported_with", mapping_of(is_text)),
        ("files", mapping_of(lambda entry: isinstance(entry, dict))),
    ):
        require(is_usable(fields.get(name)), path, name, fields.get(name))
    model, draft = _sizes(fields, "model", path), None
    if fields.get("draft") is not None:
        draft = _sizes(fields, "draft", path)
        is_alike = all(getattr(draft, name) == getattr(model, name) for name in ("patch_size", *_PROMPT_SIZES))
        require(is_alike, path, "draft", fields["draft"])
    files = read_files(fields["files"], path)
    for name in (MODEL_NAME,) if draft is None else (MODEL_NAME, DRAFT_NAME):
        require(name in files, path, "files", sorted(files))
    return SeriesManifest(model, draft, fields["source_name"], fields["checks"], fields["exported_with"], files)


def _sizes(manifest: dict[str, Any], part: str, path: Path) -> PatchSizes:
    fields = manifest.get(part)
    require(isinstance(fields, dict), path, part, fields)
    assert isinstance(fields, dict)
    for name, most in _SIZES.items():
        require(size_within(most)(fields.get(name)), path, f"{name} of {part}", fields.get(name))
    limits = [fields[name] for name in _PROMPT_SIZES]
    require(limits == sorted(limits), path, f"max_prompt of {part}", fields["max_prompt"])
    sizes = PatchSizes(**{name: fields[name] for name in _SIZES})
    require(sizes.max_horizon > 0, path, f"max_context of {part}", sizes.max_context)
    return sizes
