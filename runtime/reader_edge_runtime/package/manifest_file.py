"""The file of a manifest: JSON in the package's folder, written whole and believed only field by field."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import ManifestError, PackageError
from reader_edge_runtime.generation_config import is_own_sampling
from reader_edge_runtime.package.images import QWEN_FAMILIES
from reader_edge_runtime.package.manifest import GRAPH_NAME, MANIFEST_NAME, TOKENIZER_NAME, Manifest
from reader_edge_runtime.package.package_parts import (
    ASSISTANT,
    DFLASH,
    MOST_STATES,
    SPECULATOR_GRAPH_NAME,
    SPECULATOR_WEIGHTS_NAME,
    VISION_GRAPH_NAME,
    VISION_WEIGHTS_NAME,
)
from reader_edge_runtime.untrusted.untrusted_json import converted, decoded, read_plain
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK

FORMAT_VERSION = 6
MAX_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9][\w.-]+[:/][\w.-]+", re.ASCII)  # smollm2:135m, OWNER/NAME
_REMEDY = "export the model again"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into `folder`, last of the package's files; it appears whole or not at all."""
    fields = {"format": "reader-edge", "format_version": FORMAT_VERSION, **msgspec.to_builtins(manifest)}
    for name in ("layers", "state_ids", "speculator", "images", "stage", "sampling", "pooling", "adapted_products"):
        if not fields[name]:
            del fields[name]
    if manifest.speculator is not None:
        for name in ("block", "lent"):
            if getattr(manifest.speculator, name) is None:
                del fields["speculator"][name]
    write_file(folder / MANIFEST_NAME, (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode())


def _is_like_a_name(path: Path) -> bool:
    """Whether a path that leads nowhere may be meant as a model's name, which only the command line knows."""
    return _NAME.fullmatch(path.as_posix()) is not None and not (path.parent.name and path.parent.exists())


def read_manifest(folder: Path) -> Manifest:
    """Read and check a folder's manifest. Raises PackageError (no such folder) or ManifestError."""
    return read_manifest_once(folder)[0]


def read_manifest_once(folder: Path) -> tuple[Manifest, str]:
    """The same, and the SHA-256 (hex) of the very bytes that it is from."""
    if not folder.is_dir():
        named = f" (`reader-edge export {folder} FOLDER` writes one of that name)" if _is_like_a_name(folder) else ""
        raise PackageError(f"No model package at '{folder}': give a folder written by 'reader-edge export'{named}.")
    path = folder / MANIFEST_NAME
    if not path.exists() and not path.is_symlink():
        raise ManifestError(f"'{folder}' holds no {MANIFEST_NAME}: give a folder written by 'reader-edge export'.")
    again = "export or copy the package again"
    data = read_plain(path, ManifestError, again, MAX_BYTES)
    fields = decoded(data.removeprefix(BYTE_ORDER_MARK), f"'{path}'", ManifestError, again)
    if not isinstance(fields, dict) or fields.get("format") != "reader-edge":
        raise ManifestError(f"'{path}' is not a reader-edge manifest: {_REMEDY}.")
    version = fields.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        remedy = "upgrade reader-edge" if isinstance(version, int) and version > FORMAT_VERSION else "export it again"
        raise ManifestError(
            f"'{path}' has format version {version!r:.80}, this runtime reads {FORMAT_VERSION}: {remedy}."
        )
    remedy = "split the model again" if fields.get("stage") else _REMEDY
    manifest = converted(fields, Manifest, f"'{path}'", ManifestError, remedy)
    for is_usable, name, value in _relations(manifest):
        if not is_usable:
            raise ManifestError(f"'{path}' has an unusable {name} ({value!r:.80}): {remedy}.")
    _check_files(manifest, path)
    return manifest, hashlib.sha256(data).hexdigest()


def _relations(manifest: Manifest) -> Iterator[tuple[object, str, object]]:
    """Whether fields fit together, each with its name and its value."""
    for name, token_ids in (("eos_token_ids", manifest.eos_token_ids), ("bos_token_id", (manifest.bos_token_id or 0,))):
        yield from ((token_id < manifest.vocab_size, f"token of {name}", token_id) for token_id in token_ids)
    num_experts, num_chosen = manifest.num_experts, manifest.num_experts_per_token
    is_mixture = num_experts is num_chosen is None or 0 < (num_chosen or 0) <= (num_experts or 0)
    yield is_mixture, "num_experts_per_token", num_chosen
    yield is_own_sampling(manifest.sampling), "sampling", manifest.sampling
    layers = manifest.layers
    is_whole = len(layers) in (0, manifest.num_layers)
    yield is_whole, f"number of layers beside num_layers {manifest.num_layers}", len(layers)
    for number, layer in enumerate(layers):
        yield layer.can_share(layers[:number]), f"layers[{number}].cache", layer.cache
    numbers, part, stage = manifest.state_ids, manifest.speculator, manifest.stage
    is_reported = len(numbers) <= MOST_STATES and manifest.hidden_size and manifest.attention == "exact"
    are_ids = list(numbers) == sorted(set(numbers)) and set(numbers) <= set(range(manifest.num_layers + 2))
    yield not numbers or (is_reported and are_ids), "state_ids", numbers
    yield part is None or set(part.state_ids) <= set(numbers), "speculator.state_ids", part and part.state_ids
    if part is not None:
        is_block, lent = part.format == DFLASH, part.lent
        yield is_block == (part.block is not None) and part.num_layers >= is_block, "speculator.block", part.block
        numbers = lent.layers if lent is not None else ()
        is_there = sorted(set(numbers)) == list(numbers) and set(numbers) <= set(manifest.cached_layers)
        is_alone = lent is None or not part.num_layers
        yield is_there and is_alone and (part.format == ASSISTANT) == (lent is not None), "speculator.lent", lent
    if (images := manifest.images) is not None:
        yield manifest.attention == "exact" and stage is None, "images", images
        yield images.width == manifest.hidden_size, "images.width", images.width
        yield images.num_deepstack <= manifest.num_layers, "images.num_deepstack", images.num_deepstack
        yield images.token_id < manifest.vocab_size, "images.token_id", images.token_id
        has_axes = images.rules.family in QWEN_FAMILIES
        yield images.position_axes in (1, 3 if has_axes else 1), "images.position_axes", images.position_axes
    is_adapted = manifest.attention == "exact" and stage is None
    yield is_adapted or not manifest.adapted_products, "adapted_products", manifest.adapted_products
    if stage is not None:
        yield (misfit := stage.misfit(manifest.num_layers)) is None, f"stage.{misfit}", stage


def _check_files(manifest: Manifest, path: Path) -> None:
    """Raise ManifestError for a file that must be there."""
    wanted = [GRAPH_NAME]
    wanted += [TOKENIZER_NAME] if manifest.stage is None or manifest.stage.is_last else []
    wanted += [SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME] if manifest.speculator else []
    wanted += [VISION_GRAPH_NAME, VISION_WEIGHTS_NAME] if manifest.images else []
    for name in wanted:
        if name not in manifest.files:
            raise ManifestError(f"'{path}' lists no {name}: {_REMEDY}.")
