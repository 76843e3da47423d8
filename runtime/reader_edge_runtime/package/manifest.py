"""What a model package says of itself, and the names of its files: shared truth of export and runtime.

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
                                            layer_state.{number}   float32 (B, N, E), of each of state_ids
    past_key.{layer}, past_value.{layer}  kv_dtype (B, H, S, D)

Layers with a KV cache of their own are named, whose heads may differ in number and size. Where `layers` tells of
recurrent ones, a pass moves their states (P rows of capsules, C numbers each, by layer and kind of state):

    parents                 int64 (B, N), of each node, -1 for node 0
    num_kept                int64 (B,): over so many first nodes, a chain, the states are moved for good
    num_pending             int64 (B,): over so many rows of the pending capsules, before that
    state_{kind}.{layer}    float32 (B, ...)          present_{kind}.{layer}  the same, bound to the state's memory
    pending_{kind}.{layer}  float32 (B, P, C)         capsule_{kind}.{layer}  float32 (B, N, C): by which a later pass
                                                          moves the state over a node; any numbers of kept ones

With an attention of ROW_ATTENTIONS a pass leaves the cache as it is: there is new_key.{layer}, new_value.{layer}
float32 (B, H, N, D) in the place of present_, for the host to write at write_pos. Integers are int32, and the best
successors are not named.

With the kv_dtype int8 a row of the KV cache has D + 2 numbers: see `reader_edge_export.lowering.cache_rows`.
Masks are added to the attention scores: 0 where a node may look, MASKED elsewhere.
The graph's metadata have the precision, attention and num_heads too (LOWERING_PROPERTY), which are compared when it is
loaded.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.package_parts import ImagesPart, LowRankProduct, SpeculatorPart, StagePart
from reader_edge_runtime.untrusted.untrusted_json import Figure, Sha256, Text, one_of

MANIFEST_NAME = "reader_edge.json"
GRAPH_NAME = "model.onnx"
WEIGHTS_NAME = "model.onnx.data"
COMMIT_NAME = "commit.onnx"  # only in packages for devices; see reader_edge_export.package_graph
SUCCESSORS_NAME = "successors.bin"  # a drafter's; see reader_edge_runtime.drafting.sources.successor_store
TOKENIZER_NAME = "tokenizer.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
TOOL_TEMPLATE_NAME = "chat_template_tool_use.jinja"  # for conversations with tools, where a model has two
MASKED = -1e30
LOWERING_PROPERTY = "reader_edge.form"  # of the graph's metadata: what `lowering_id` gives

ATTENTIONS = ("exact", "fast", "portable", "portable-exact")
EXACT_ATTENTIONS = ("exact", "portable-exact")  # a node has the same bits in every pass
ROW_ATTENTIONS = ("portable-exact", "portable")  # operators of opset 18; new rows of the KV cache are results
POOLINGS = ("last", "rank")
MAX_VOCAB = 1 << 24

_Size = Annotated[int, Meta(ge=1, le=1 << 12)]
_Tokens = Annotated[int, Meta(ge=1, le=1 << 28)]
_Experts = Annotated[int, Meta(ge=1, le=1 << 16)]
FileName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")]


@dataclass(frozen=True, slots=True)
class QualityLimit:
    """Up to where a precision loses what is usual for it. closer: the precision to export with instead."""

    mean_kl_nats: float
    top1_agreement: float
    closer: str


@dataclass(frozen=True, slots=True)
class Precision:
    """How matrices are stored, how rows are rounded that meet them, and what that may lose.

    weight_bytes: about, of a weight with its scales. limit: None of fp32, which loses nothing. num_planes: of int8 that
    a row of activations is rounded to; 0 where it is not, nor weights. is_calibrated: whether rounding learns from a
    text. is_portable: whether operators of the ONNX standard alone compute it. half: numpy's name of the type of
    weights and KV cache, if of two bytes. is_four_bit: whether matrices are in four bits, but for those that lose most
    by it. keeps_blocks: whether matrices stay as a GGUF file has them. has_twin: whether it is checked as fp32, as CPUs
    do not compute it.
    """

    weight_bytes: float
    limit: QualityLimit | None = None
    num_planes: int = 0
    is_calibrated: bool = False
    is_portable: bool = True
    half: str = ""
    is_four_bit: bool = False
    keeps_blocks: bool = False
    has_twin: bool = False


# Eight bits done well cost 0.001 to 0.005 nats, five bits 0.01 to 0.02, four bits 0.03 to 0.08, three bits 0.1 and
# more: llama.cpp's figures for an 8B model; small models lose more (benchmarks/fidelity/FIDELITY.md). A limit stands
# where a package loses what one of fewer bits may lose; equal first choices are what that does to plain answers.
PRECISIONS = {
    "fp32": Precision(4),
    "fp16": Precision(2, QualityLimit(0.002, 0.98, "fp32"), half="float16"),
    "bf16": Precision(2, QualityLimit(0.01, 0.96, "fp32"), is_portable=False, half="bfloat16", has_twin=True),
    "int8": Precision(1, QualityLimit(0.02, 0.95, "int8-a16"), 1, is_calibrated=True),
    "int8-a16": Precision(1, QualityLimit(0.01, 0.96, "fp32"), 2, is_calibrated=True),
    "int4": Precision(0.7, QualityLimit(0.1, 0.85, "int8"), 1, is_calibrated=True, is_portable=False, is_four_bit=True),
    # Types of files are near four bits, or near eight; rows alone are rounded.
    "keep": Precision(0.7, QualityLimit(0.02, 0.95, "int8-a16"), 1, is_portable=False, keeps_blocks=True),
}
KV_TYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # to choose from: numpy's names
QUANTIZED_PRECISIONS = tuple(name for name, each in PRECISIONS.items() if each.num_planes)
HALF_PRECISIONS = {name: each.half for name, each in PRECISIONS.items() if each.half}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 (hex) of one file of the package."""

    num_bytes: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    sha256: Sha256


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
    special_tokens: texts of special tokens by the names that chat templates have for them, as "bos_token".
    num_experts, num_experts_per_token: of a mixture, in each layer that has them, and those that a token goes through;
    None for other models.
    state_ids: the states that the graph reports of every node, ascending. Number i enters layer i, num_layers leaves
    the last one, and num_layers + 1 is what the logit head reads. () in packages for devices.
    sampling: what the source's maker recommends, by the names of SamplingConfig's fields (OWN_SAMPLING); {} where that
    is greedy decoding without a penalty.
    pooling: what the model is made for besides answers, in llama.cpp's words: "last" embeds a text by the state of its
    last token, "rank" scores a document by the logits behind a prompt; "" is neither.
    speculator: what a trained speculator in the package is; None without.
    images: what it sees of images; None for a model of texts alone.
    adapted_products: those that take adapters, in the order in which an adapter has their factors; () where none does.
    stage: which layers of a model that several boxes run these are; None for a whole model.
    layers: what each of num_layers keeps; empty where all are attention of num_kv_heads and head_dim, with own caches.
    source_name: what was exported. source_fingerprint: SHA-256 over its config and weight files.
    exported_with: package name -> version, "unknown" of one that ran from its source code without being installed.
    checks: measured figures of the export's own checks.
    files: file name -> FileEntry, for every file but the manifest.
    """

    architecture: Text
    num_heads: _Size
    num_kv_heads: _Size
    head_dim: _Size
    num_layers: _Size
    vocab_size: Annotated[int, Meta(ge=1, le=MAX_VOCAB)]
    top_k: Annotated[int, Meta(ge=1, le=256)]
    max_context: _Tokens
    sliding_window: _Tokens | None
    precision: Annotated[str, one_of(*PRECISIONS)]
    attention: Annotated[str, one_of(*ATTENTIONS)]
    kv_dtype: Annotated[str, one_of(*KV_TYPES.values(), *HALF_PRECISIONS.values())]
    eos_token_ids: tuple[Annotated[int, Meta(ge=0)], ...]
    bos_token_id: Annotated[int, Meta(ge=0)] | None
    source_name: Text
    source_fingerprint: Text
    exported_with: Mapping[Text, Text]
    checks: Mapping[Text, Figure]
    files: Mapping[FileName, FileEntry]
    kept_types: Mapping[Text, Annotated[int, Meta(ge=1, le=1 << 16)]] = field(default_factory=dict)
    hidden_size: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    special_tokens: Mapping[Text, Annotated[str, Meta(max_length=4096)]] = field(default_factory=dict)
    num_experts: _Experts | None = None
    num_experts_per_token: _Experts | None = None
    layers: tuple[Layer, ...] = ()
    state_ids: tuple[int, ...] = ()
    speculator: SpeculatorPart | None = None
    images: ImagesPart | None = None
    adapted_products: tuple[LowRankProduct, ...] = ()
    stage: StagePart | None = None
    sampling: Mapping[str, Figure] = field(default_factory=dict)
    pooling: Annotated[str, one_of("", *POOLINGS)] = ""

    @property
    def lowering_id(self) -> str:
        """What the graph's metadata say of it too."""
        return lowering_id(self.precision, self.attention, self.num_heads)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files but the manifest."""
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
        return value_bytes * sum(
            len(layer.kept) * layer.num_kv_heads * kv_row_size(self.kv_dtype, layer.head_dim)
            for layer in self.cached_layers.values()
        )

    @property
    def state_bytes(self) -> int:
        """Of a text, whatever its length: the states of all recurrent layers."""
        return 4 * sum(math.prod(sizes) for layer in self.layers for sizes in layer.states.values())

    @property
    def adapter_dtype(self) -> str:
        """The numpy name of the type that a table has factors of adapters in."""
        return "float32" if self.precision == "fp32" else "float16"

    def past_names(self) -> list[str]:
        """Names of the graph's KV inputs, key and value in turn of each layer with a cache of its own."""
        return [f"past_{kind}.{number}" for number, layer in self.cached_layers.items() for kind in layer.kept]

    def present_names(self) -> list[str]:
        """Names of the graph's KV outputs, in the order of `past_names`."""
        word = "new_" if self.attention in ROW_ATTENTIONS else "present_"
        return [name.replace("past_", word) for name in self.past_names()]

    def layer_state_names(self) -> list[str]:
        """Names of the graph's outputs for `state_ids`, in their order."""
        return [f"layer_state.{number}" for number in self.state_ids]

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


def lowering_id(precision: str, attention: str, num_heads: int) -> str:
    """What a graph says of itself that neither its inputs nor its outputs tell."""
    return f"{precision}, {attention} attention, {num_heads} heads"


def kv_row_size(kv_dtype: str, head_dim: int) -> int:
    """Numbers that a KV cache of this type keeps of a key or value: in int8, two tell how large the others are."""
    return head_dim + 2 if kv_dtype == "int8" else head_dim
