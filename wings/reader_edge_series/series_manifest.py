"""The manifest of a forecasting model's package, and the contract of its graphs.

The contract is that of `reader_edge_runtime.package.manifest` with attention "exact" and caches in float32, but for
this (P values of a patch, G numbers of each of them, see `PatchDistribution`):

    patches  float32 (B, N, P), in place of input_ids        parameters  float32 (B, R, G * P), in place of logits

A package has a model and, beside it, perhaps a small one that drafts.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import ManifestError, PackageError
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import FileEntry, FileName
from reader_edge_runtime.untrusted.untrusted_json import Figure, Text, converted, read_json
from reader_edge_series.patch_distribution import num_parameters

SERIES_MANIFEST_NAME = "reader_edge_series.json"
MODEL_NAME, DRAFT_NAME = "series.onnx", "series_draft.onnx"  # weights lie beside them, in NAME.data

SIZES_PROPERTY = "reader_edge.patch_sizes"  # of a graph's metadata: what `PatchSizes.to_json` gives
MOST_DRAFTS = 6  # patches in a row

_Size = Annotated[int, Meta(ge=1, le=1 << 12)]
_Patches = Annotated[int, Meta(ge=1, le=1 << 20)]
_PROMPT_SIZES = ("min_prompt", "max_prompt", "max_context")
_MAX_BYTES = 1 << 20
_REMEDY = "give a folder written by 'reader-edge series export'"


@dataclass(frozen=True, slots=True)
class PatchSizes:
    """Of one graph, which is a `KvLayout`. num_patches: F, how many coming patches a node tells of. patch_size: P.

    window: how many patches a node sees, its own included. min_prompt, max_prompt: patches of a series' past that a
    forecast goes on from. max_context: those and the forecast together.
    """

    num_layers: Annotated[int, Meta(ge=1, le=1 << 10)]
    num_kv_heads: _Size
    head_dim: _Size
    num_patches: Annotated[int, Meta(ge=1, le=64)]
    patch_size: _Size
    window: _Patches
    min_prompt: _Patches
    max_prompt: _Patches
    max_context: _Patches

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
    source_name: Text
    checks: Mapping[Text, Figure]
    exported_with: Mapping[Text, Text]
    files: Mapping[FileName, FileEntry]
    format: Literal["reader-edge-series"] = "reader-edge-series"
    format_version: Literal[1] = 1


def write_series_manifest(folder: Path, manifest: SeriesManifest) -> None:
    """Write it into `folder`, last of the package's files."""
    data = json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"
    write_file(folder / SERIES_MANIFEST_NAME, data.encode())


def read_series_manifest(folder: Path) -> SeriesManifest:
    """Raises PackageError (no such folder) or ManifestError."""
    path = folder / SERIES_MANIFEST_NAME
    if not folder.is_dir():
        raise PackageError(f"No forecasting model at '{folder}': {_REMEDY}.")
    if not path.exists() and not path.is_symlink():
        raise ManifestError(f"'{folder}' holds no {SERIES_MANIFEST_NAME}: {_REMEDY}.")
    fields = read_json(path, ManifestError, _REMEDY, _MAX_BYTES)
    manifest = converted(fields, SeriesManifest, f"'{path}'", ManifestError, _REMEDY)
    for is_usable, name, value in _relations(manifest):
        if not is_usable:
            raise ManifestError(f"'{path}' has an unusable {name} ({value!r:.80}): {_REMEDY}.")
    return manifest


def _relations(manifest: SeriesManifest) -> Iterator[tuple[bool, str, object]]:
    """Whether fields fit together, each with its name and its value."""
    wanted = [(manifest.model, "model", MODEL_NAME)]
    wanted += [(manifest.draft, "draft", DRAFT_NAME)] if manifest.draft is not None else []
    for sizes, part, name in wanted:
        limits = [getattr(sizes, limit) for limit in _PROMPT_SIZES]
        yield limits == sorted(limits), f"{part}.max_prompt", sizes.max_prompt
        yield sizes.max_horizon > 0, f"{part}.max_context", sizes.max_context
        yield name in manifest.files, "files", sorted(manifest.files)
        alike = ("patch_size", *_PROMPT_SIZES)
        yield all(getattr(sizes, each) == getattr(manifest.model, each) for each in alike), part, sizes
