"""What a model package says of itself, and the names of its files: shared truth of export and runtime.

Graph contract of format version 1
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 (hex) of one file of the package."""

    num_bytes: int
    sha256: str


def sha256_of(path: Path) -> str:
    """SHA-256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> FileEntry:
    """FileEntry of a file as it is now."""
    return FileEntry(path.stat().st_size, sha256_of(path))


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
