"""What a model package says of itself, and the names of its files: shared truth of export and runtime.

The manifest is JSON in the package's folder, written whole and believed only field by field.

Graph contract
(B sequences, N nodes, M visible KV rows, R logit rows, S slot rows, H KV heads, D head size, V vocabulary, K top_k):

    input_ids      int64 (B, N)          logits                 float32 (B, R, V)
    position_ids   int64 (B, N)          top_ids, top_logits    int64, float32 (B, R, K), best first, equals by id
    tree_mask      float32 (B, 1, N, M)  present_key.{layer}    kv_dtype (B, H, S, D), bound to the past's memory
    tree_mask_sliding, the same shape    present_value.{layer}  the same
        (only with a sliding_window)
    write_pos      int64 (B,)
    logit_rows     int64 (B, R)             log_sum_exp            float32 (B, R), only in packages for devices
                                            hidden_states          float32 (B, R, E), only with a hidden_size
    past_key.{layer}, past_value.{layer}  kv_dtype (B, H, S, D)

Layers with a KV cache of their own are named, whose heads may differ in number and size. Where `layers` tells of
recurrent ones, a pass moves their states (P rows of capsules, C numbers each, by layer and kind of state):

    parents                 int64 (B, N), of each node, -1 for node 0
    num_kept                int64 (B,): over so many first nodes, a chain, the states are moved for good
    num_pending             int64 (B,): over so many rows of the pending capsules, before that
    state_{kind}.{layer}    float32 (B, ...)          present_{kind}.{layer}  the same, bound to the state's memory
    pending_{kind}.{layer}  float32 (B, P, C)         capsule_{kind}.{layer}  float32 (B, N, C): by which a later pass
                                                          moves the state over a node; any numbers of kept ones

With the kv_dtype int8 a row of the KV cache has D + 2 numbers: see `reader_edge_export.lowering.cache_rows`.
Masks are added to the attention scores: 0 where a node may look, MASKED elsewhere.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import ManifestError, PackageError
from reader_edge_runtime.outside.plain_file import check_plain_file
from reader_edge_runtime.package.layer import Layer, read_layers

MANIFEST_NAME = "reader_edge.json"
GRAPH_NAME = "model.onnx"
WEIGHTS_NAME = "model.onnx.data"
COMMIT_NAME = "commit.onnx"  # only in packages for devices; see reader_edge_export.onnx_graph.commit_graph
SUCCESSORS_NAME = "successors.bin"  # a drafter's; see reader_edge_runtime.drafting.sources.successor_table
TOKENIZER_NAME = "tokenizer.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
TOOL_TEMPLATE_NAME = "chat_template_tool_use.jinja"  # for conversations with tools, where a model has two
FORMAT_VERSION = 1  # of packages whose layers all have attention, of one size and with caches of their own
LAYERED_VERSION = 2  # of packages that tell of each layer what it keeps
MASKED = -1e30

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int8-a16", "int4", "keep")
QUANTIZED_PRECISIONS = ("int8", "int8-a16", "int4", "keep")  # weights are integers, and rows of activations too
HALF_PRECISIONS = {"fp16": "float16", "bf16": "bfloat16"}  # and the KV cache's type
ATTENTIONS = ("exact", "fast", "portable")

_NAME = re.compile(r"[A-Za-z0-9][\w.-]+[:/][\w.-]+", re.ASCII)  # smollm2:135m, OWNER/NAME
_MAX_BYTES = 1 << 20
_MAX_TEXT = 4096
MAX_VOCAB = 1 << 24
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 (hex) of one file of the package."""

    num_bytes: int
    sha256: str


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, sha256_of(path))


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a package says of itself.

    architecture: `model_type` of the source config, e.g. "llama".
    num_heads, num_kv_heads, head_dim, num_layers, vocab_size: sizes of the graph's tensors.
    top_k: successors the graph reports per logit row. max_context: tokens of prompt and answer together.
    sliding_window: tokens a windowed layer sees, its own included; None without such layers.
    precision: one of PRECISIONS; with "keep" weights are as in a GGUF file, and kept_types counts the matrices of each
    of its types, else {}. hidden_size: E, what the logit head reads of a row; None where the graph does not report it.
    attention: one of ATTENTIONS. kv_dtype: numpy name of the KV cache's type.
    eos_token_ids: tokens that end an answer. bos_token_id: begins a text; None without.
    special_tokens: texts of special tokens by the names that chat templates have for them, as "bos_token"; None in
    older packages (the demo), whose templates are given those of bos_token_id and the first of eos_token_ids.
    layers: what each of num_layers keeps; empty where all are attention of num_kv_heads and head_dim, with own caches.
    source_name: what was exported. source_fingerprint: SHA-256 over its config and weight files.
    exported_with: package name -> version, "unknown" of one that ran from its source code without being installed, as
    reader-edge did for the demo. checks: measured figures of the export's own checks.
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
    kept_types: Mapping[str, int] = field(default_factory=dict)
    hidden_size: int | None = None
    special_tokens: Mapping[str, str] | None = None
    layers: tuple[Layer, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Of all files but the manifest."""
        return sum(entry.num_bytes for entry in self.files.values())

    @property
    def model_files(self) -> Mapping[str, FileEntry]:
        """What answers and the time of passes depend on: all files but the successors, which come later too."""
        return {name: entry for name, entry in self.files.items() if name != SUCCESSORS_NAME}

    @property
    def is_measured(self) -> bool:
        """Whether it was compared with its source."""
        return "tree_rows_equal" in self.checks

    @property
    def is_tuned(self) -> bool:
        """Whether it has its table of likely successors."""
        return SUCCESSORS_NAME in self.files

    @property
    def kv_row_size(self) -> int:
        """Numbers of a key or value in the KV cache, where all layers have the same."""
        return kv_row_size(self.kv_dtype, self.head_dim)

    @property
    def cached_layers(self) -> Mapping[int, Layer]:
        """By number, the layers with keys and values of their own."""
        layers = self.layers or (Layer.attention(self.num_kv_heads, self.head_dim),) * self.num_layers
        return {number: layer for number, layer in enumerate(layers) if layer.has_cache}

    @property
    def has_states(self) -> bool:
        """Whether some layers are recurrent."""
        return any(layer.states for layer in self.layers)

    @property
    def kv_row_bytes(self) -> int:
        """Of a token in the KV cache: keys and values of all layers and heads."""
        value_bytes = {"float32": 4, "int8": 1}.get(self.kv_dtype, 2)
        return (
            2
            * value_bytes
            * sum(
                layer.num_kv_heads * kv_row_size(self.kv_dtype, layer.head_dim) for layer in self.cached_layers.values()
            )
        )

    @property
    def state_bytes(self) -> int:
        """Of a text, whatever its length: the states of all recurrent layers."""
        return 4 * sum(math.prod(sizes) for layer in self.layers for sizes in layer.states.values())

    def past_names(self) -> list[str]:
        """Names of the graph's KV inputs, key and value in turn of each layer with a cache of its own."""
        return [f"past_{kind}.{layer}" for layer in self.cached_layers for kind in ("key", "value")]

    def present_names(self) -> list[str]:
        """Names of the graph's KV outputs, in the order of `past_names`."""
        return [name.replace("past_", "present_") for name in self.past_names()]

    def state_sizes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of each recurrent state of a text, by what follows `state_`, `pending_`, `present_` and `capsule_`."""
        return {
            f"{kind}.{number}": sizes
            for number, layer in enumerate(self.layers)
            for kind, sizes in layer.states.items()
        }

    def capsule_sizes(self) -> dict[str, int]:
        """Numbers of a node's capsule, by the same names."""
        return {
            f"{kind}.{number}": layer.capsules[kind]
            for number, layer in enumerate(self.layers)
            for kind in layer.states
        }


def kv_row_size(kv_dtype: str, head_dim: int) -> int:
    """Numbers that a KV cache of this type keeps of a key or value: in int8, two tell how large the others are."""
    return head_dim + 2 if kv_dtype == "int8" else head_dim


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into `folder`, last of the package's files; it appears whole or not at all."""
    version = LAYERED_VERSION if manifest.layers else FORMAT_VERSION
    fields = {"format": "reader-edge", "format_version": version, **asdict(replace(manifest, layers=()))}
    del fields["layers"]
    if manifest.layers:
        fields["layers"] = [layer.fields() for layer in manifest.layers]
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
    check_plain_file(path, ManifestError, "export or copy the package again")
    num_bytes = path.stat().st_size
    if num_bytes > _MAX_BYTES:
        raise ManifestError(f"'{path}' has {num_bytes} bytes, more than a manifest may have: export again.")
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"'{path}' is not valid JSON ({error}): export the model again.") from None
    if not isinstance(fields, dict) or fields.get("format") != "reader-edge":
        raise ManifestError(f"'{path}' is not a reader-edge manifest: export the model again.")
    version = fields.get("format_version")
    if type(version) is not int or version not in (FORMAT_VERSION, LAYERED_VERSION):
        is_newer = isinstance(version, int) and version > LAYERED_VERSION
        raise ManifestError(
            f"'{path}' has format version {version!r:.80}, this runtime reads {FORMAT_VERSION} and {LAYERED_VERSION}: "
            f"{'upgrade reader-edge' if is_newer else 'export it again'}."
        )
    return _checked(fields, path)


def _size(most: int, least: int = 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _mapping(is_usable: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, dict) and all(_is_text(k) and is_usable(v) for k, v in values.items())


def _is_text(value: object) -> bool:
    """A short text that can be shown: no escape sequences, line breaks or lone surrogates."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable()


def _is_special(values: object) -> bool:
    """Texts by name; unlike others they may hold what cannot be shown, as a line break."""
    return isinstance(values, dict) and all(
        _is_text(name) and isinstance(text, str) and len(text) <= _MAX_TEXT for name, text in values.items()
    )


def _is_figure(value: object) -> bool:
    """A finite number that a float holds."""
    return (isinstance(value, float) and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 53)


_IS_USABLE: dict[str, Callable[[Any], bool]] = {
    "architecture": _is_text,
    "num_heads": _size(1 << 12),
    "num_kv_heads": _size(1 << 12),
    "head_dim": _size(1 << 12),
    "num_layers": _size(1 << 12),
    "vocab_size": _size(MAX_VOCAB),
    "top_k": _size(256),
    "max_context": _size(1 << 28),
    "sliding_window": lambda value: value is None or _size(1 << 28)(value),
    "precision": lambda value: value in PRECISIONS,
    "attention": lambda value: value in ATTENTIONS,
    "kv_dtype": lambda value: value in ("float32", "int8", *HALF_PRECISIONS.values()),
    "eos_token_ids": lambda values: isinstance(values, list) and all(map(_size(MAX_VOCAB - 1, least=0), values)),
    "bos_token_id": lambda value: value is None or _size(MAX_VOCAB, least=0)(value),
    "source_name": _is_text,
    "source_fingerprint": _is_text,
    "exported_with": _mapping(_is_text),
    "checks": _mapping(_is_figure),
    "files": _mapping(lambda entry: isinstance(entry, dict)),
    "kept_types": _mapping(_size(1 << 16)),
    "hidden_size": lambda value: value is None or _size(1 << 20)(value),
    "special_tokens": lambda value: value is None or _is_special(value),
}


def _checked(fields: dict[str, Any], path: Path) -> Manifest:
    """The manifest of these fields. Raises ManifestError, which names the field and its value."""
    fields = {"kept_types": {}, **fields}  # which older packages lack, the demo among them
    values: dict[str, Any] = {name: fields.get(name) for name in _IS_USABLE}
    for name, is_usable in _IS_USABLE.items():
        _require(is_usable(values[name]), path, name, values[name])
    for name, entry in fields["files"].items():
        if not _FILE_NAME.fullmatch(name):
            raise ManifestError(f"'{path}' lists {name!r:.80}, which is not a plain file name in its folder.")
        num_bytes, sha256 = entry.get("num_bytes"), entry.get("sha256")
        _require(_size((1 << 63) - 1, least=0)(num_bytes), path, f"size of {name}", num_bytes)
        _require(isinstance(sha256, str) and _SHA256.fullmatch(sha256), path, f"checksum of {name}", sha256)
    for name in (GRAPH_NAME, TOKENIZER_NAME):
        if name not in fields["files"]:
            raise ManifestError(f"'{path}' lists no {name}: export the model again.")
    if fields["format_version"] == LAYERED_VERSION:
        values["layers"] = _layers(fields.get("layers"), values["num_layers"], path)
    values["eos_token_ids"] = tuple(fields["eos_token_ids"])
    values["files"] = {name: FileEntry(each["num_bytes"], each["sha256"]) for name, each in fields["files"].items()}
    return Manifest(**values)


def _layers(values: Any, num_layers: int, path: Path) -> tuple[Layer, ...]:
    """Raises ManifestError, with the first layer that is unusable."""
    _require(isinstance(values, list) and len(values) == num_layers, path, "layers", values)
    try:
        return read_layers(values)
    except ValueError as error:
        number = int(str(error))
        raise ManifestError(
            f"'{path}' has an unusable layer {number} ({values[number]!r:.80}): export the model again."
        ) from None


def _require(is_usable: object, path: Path, name: str, value: object) -> None:
    if not is_usable:
        raise ManifestError(f"'{path}' has an unusable {name} ({value!r:.80}): export the model again.")
