"""The file of a manifest: JSON in the package's folder, written whole and believed only field by field."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import ManifestError, PackageError
from reader_edge_runtime.generation_config import is_own_sampling
from reader_edge_runtime.package.layer import Layer, read_layers
from reader_edge_runtime.package.manifest import (
    ATTENTIONS,
    GRAPH_NAME,
    HALF_PRECISIONS,
    MANIFEST_NAME,
    MAX_VOCAB,
    PRECISIONS,
    TOKENIZER_NAME,
    Manifest,
)
from reader_edge_runtime.package.manifest_fields import (
    MAX_TEXT,
    is_figure,
    is_text,
    mapping_of,
    read_fields,
    read_files,
    require,
    size_within,
)
from reader_edge_runtime.package.speculator_part import (
    MOST_STATES,
    SPECULATOR_GRAPH_NAME,
    SPECULATOR_WEIGHTS_NAME,
    read_speculator_part,
)
from reader_edge_runtime.package.stage_part import read_stage_part

FORMAT_VERSION = 1  # of packages whose layers all have attention, of one size and with caches of their own
LAYERED_VERSION = 2  # of packages that tell of each layer what it keeps
STATES_VERSION = 3  # of packages that report states of layers, and may tell of each layer and have a speculator
STAGE_VERSION = 4  # of packages that are a stage of a model

_NAME = re.compile(r"[A-Za-z0-9][\w.-]+[:/][\w.-]+", re.ASCII)  # smollm2:135m, OWNER/NAME


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into `folder`, last of the package's files; it appears whole or not at all."""
    version = STATES_VERSION if manifest.state_ids else LAYERED_VERSION if manifest.layers else FORMAT_VERSION
    version = version if manifest.stage is None else STAGE_VERSION
    fields = {"format": "reader-edge", "format_version": version, **asdict(replace(manifest, layers=()))}
    del fields["layers"]
    if manifest.layers:
        fields["layers"] = [layer.fields() for layer in manifest.layers]
    if manifest.speculator is None:
        del fields["speculator"]
    if manifest.stage is None:
        del fields["stage"]
    if version != STATES_VERSION:
        del fields["state_ids"]
    if not manifest.sampling:
        del fields["sampling"]
    write_file(folder / MANIFEST_NAME, (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode())


def _is_like_a_name(path: Path) -> bool:
    """Whether a path that leads nowhere may be meant as a model's name, which only the command line knows."""
    return _NAME.fullmatch(path.as_posix()) is not None and not (path.parent.name and path.parent.exists())


def read_manifest(folder: Path) -> Manifest:
    """Read and check a folder's manifest. Raises PackageError (no such folder) or ManifestError."""
    if not folder.is_dir():
        named = f" (`reader-edge export {folder} FOLDER` writes one of that name)" if _is_like_a_name(folder) else ""
        raise PackageError(f"No model package at '{folder}': give a folder written by 'reader-edge export'{named}.")
    path = folder / MANIFEST_NAME
    if not path.exists() and not path.is_symlink():
        raise ManifestError(f"'{folder}' holds no {MANIFEST_NAME}: give a folder written by 'reader-edge export'.")
    fields = read_fields(path, "reader-edge")
    version = fields.get("format_version")
    if type(version) is not int or not FORMAT_VERSION <= version <= STAGE_VERSION:
        is_newer = isinstance(version, int) and version > STAGE_VERSION
        raise ManifestError(
            f"'{path}' has format version {version!r:.80}, this runtime reads {FORMAT_VERSION} to {STAGE_VERSION}: "
            f"{'upgrade reader-edge' if is_newer else 'export it again'}."
        )
    return _checked(fields, path)


def _is_special(values: object) -> bool:
    """Texts by name; unlike others they may hold what cannot be shown, as a line break."""
    return isinstance(values, dict) and all(
        is_text(name) and isinstance(text, str) and len(text) <= MAX_TEXT for name, text in values.items()
    )


_IS_USABLE: dict[str, Callable[[Any], bool]] = {
    "architecture": is_text,
    "num_heads": size_within(1 << 12),
    "num_kv_heads": size_within(1 << 12),
    "head_dim": size_within(1 << 12),
    "num_layers": size_within(1 << 12),
    "vocab_size": size_within(MAX_VOCAB),
    "top_k": size_within(256),
    "max_context": size_within(1 << 28),
    "sliding_window": lambda value: value is None or size_within(1 << 28)(value),
    "precision": lambda value: value in PRECISIONS,
    "attention": lambda value: value in ATTENTIONS,
    "kv_dtype": lambda value: value in ("float32", "int8", *HALF_PRECISIONS.values()),
    "eos_token_ids": lambda values: isinstance(values, list) and all(map(size_within(MAX_VOCAB - 1, least=0), values)),
    "bos_token_id": lambda value: value is None or size_within(MAX_VOCAB, least=0)(value),
    "source_name": is_text,
    "source_fingerprint": is_text,
    "exported_with": mapping_of(is_text),
    "checks": mapping_of(is_figure),
    "files": mapping_of(lambda entry: isinstance(entry, dict)),
    "kept_types": mapping_of(size_within(1 << 16)),
    "hidden_size": lambda value: value is None or size_within(1 << 20)(value),
    "num_experts": lambda value: value is None or size_within(1 << 16)(value),
    "num_experts_per_token": lambda value: value is None or size_within(1 << 16)(value),
    "special_tokens": lambda value: value is None or _is_special(value),
    "sampling": is_own_sampling,
}


def _checked(fields: dict[str, Any], path: Path) -> Manifest:
    """The manifest of these fields. Raises ManifestError, which names the field and its value."""
    fields = {"kept_types": {}, "sampling": {}, **fields}  # which older packages lack, the demo among them
    values: dict[str, Any] = {name: fields.get(name) for name in _IS_USABLE}
    for name, is_usable in _IS_USABLE.items():
        require(is_usable(values[name]), path, name, values[name])
    files = read_files(fields["files"], path)
    version = fields["format_version"]
    if version == STAGE_VERSION:
        values |= _stage(fields, values["num_layers"], path)
    is_whole = version != STAGE_VERSION or values["stage"].is_last
    for name in (GRAPH_NAME, TOKENIZER_NAME) if is_whole else (GRAPH_NAME,):
        if name not in fields["files"]:
            raise ManifestError(f"'{path}' lists no {name}: export the model again.")
    if version == LAYERED_VERSION or (version in (STATES_VERSION, STAGE_VERSION) and "layers" in fields):
        values["layers"] = _layers(fields.get("layers"), values["num_layers"], path)
    if version == STATES_VERSION:
        values |= _states(fields, values, path)
    num_experts, num_chosen = values["num_experts"], values["num_experts_per_token"]
    is_mixture = num_experts is num_chosen is None or 0 < (num_chosen or 0) <= (num_experts or 0)
    require(is_mixture, path, "num_experts_per_token", num_chosen)
    _check_ids(values, path)
    values["eos_token_ids"] = tuple(fields["eos_token_ids"])
    values["files"] = files
    return Manifest(**values)


def _check_ids(values: dict[str, Any], path: Path) -> None:
    """Raise ManifestError for a token that begins or ends texts and that the vocabulary does not have."""
    named = {"eos_token_ids": values["eos_token_ids"], "bos_token_id": [values["bos_token_id"] or 0]}
    for name, token_ids in named.items():
        if others := [token_id for token_id in token_ids if token_id >= values["vocab_size"]]:
            raise ManifestError(
                f"'{path}' has token {others[0]} as {name}, but a vocab_size of {values['vocab_size']}: "
                "export the model again."
            )


def _states(fields: dict[str, Any], values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The states of a package, and its speculator. Raises ManifestError."""
    numbers: Any = fields.get("state_ids")
    is_usable = isinstance(numbers, list) and all(map(size_within(values["num_layers"] + 1, least=0), numbers))
    require(is_usable and numbers == sorted(set(numbers)), path, "state_ids", numbers)
    is_usable = len(numbers) <= MOST_STATES and values["hidden_size"] and values["attention"] == "exact"
    require(is_usable, path, "state_ids", numbers)
    if "speculator" not in fields:
        return {"state_ids": tuple(numbers)}
    for name in (SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME):
        if name not in fields["files"]:
            raise ManifestError(f"'{path}' lists no {name}: export the model again.")
    own = fields["speculator"]
    try:
        part = read_speculator_part(own, tuple(numbers))
    except ValueError as error:
        value = own.get(str(error)) if isinstance(own, dict) else own
        raise ManifestError(
            f"'{path}' has a speculator with an unusable {error} ({value!r:.80}): export the model again."
        ) from None
    return {"state_ids": tuple(numbers), "speculator": part}


def _stage(fields: dict[str, Any], num_layers: int, path: Path) -> dict[str, Any]:
    """The stage that a package is. Raises ManifestError."""
    try:
        return {"stage": read_stage_part(fields.get("stage"), num_layers)}
    except ValueError as error:
        raise ManifestError(f"'{path}' is a stage with an unusable {error}: split the model again.") from None


def _layers(values: Any, num_layers: int, path: Path) -> tuple[Layer, ...]:
    """Raises ManifestError, with the first layer that is unusable."""
    require(isinstance(values, list), path, "layers", values)
    if len(values) != num_layers:
        raise ManifestError(
            f"'{path}' lists {len(values)} layers, but has a num_layers of {num_layers}: export the model again."
        )
    try:
        return read_layers(values)
    except ValueError as error:
        number = int(str(error))
        raise ManifestError(
            f"'{path}' has an unusable layer {number} ({values[number]!r:.80}): export the model again."
        ) from None
