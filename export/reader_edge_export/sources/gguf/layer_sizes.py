"""What a GGUF file says of its layers: their number, their kinds, their heads and the width of their MLPs."""

from typing import Any

from reader_edge_export.sources.config.config_values import MAX_LAYERS
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import base_of, rotary_share, scaling_of
from reader_edge_runtime.errors import UnsupportedArchitectureError

Config = dict[str, Any]
_WITH_LATER_LAYERS = ("qwen35", "qwen35moe", "qwen3next", "deepseek2", "nemotron_h_moe")
NEMOTRON = ("nemotron_h", "nemotron_h_moe")
_RECURRENT = (  # with layers that have no attention
    *("lfm2", "lfm2moe", "granitehybrid", "qwen35", "qwen35moe", "qwen3next"),
    *NEMOTRON,
)
CLASSIFIER = "cls.output.weight"  # of a reranker: two rows of its logit head once more
_LATER = "mtp."  # as older versions of Ollama named tensors of layers that guess later tokens


def architecture_of(file: GgufFile) -> str:
    """llama.cpp's name of the architecture, which is also the prefix of its metadata."""
    return Metadata(file, "general").text("architecture")


def num_layers_of(file: GgufFile, values: Metadata) -> int:
    """Without those that guess later tokens, which stand behind the others."""
    num_layers = values.size("block_count")
    if num_layers > min(MAX_LAYERS, len(file.tensors)):
        raise file.error(f"counts {num_layers} layers in {len(file.tensors)} tensors, and {MAX_LAYERS} are the most")
    if architecture_of(file) in _WITH_LATER_LAYERS:
        num_layers -= (num_later := values.size("nextn_predict_layers", 0, least=0))
        if num_layers < 1:
            raise file.error(f"holds no layers but {num_later} that guess later tokens", "give the file of the model")
    return num_layers


def later_tensors(file: GgufFile, num_layers: int) -> frozenset[str]:
    """Names of the tensors of layers that guess later tokens, which answers do not need: behind so many layers.

    Those that older versions of Ollama wrote are not among them: see `unread_tensors`.
    """
    if architecture_of(file) not in _WITH_LATER_LAYERS:
        return frozenset()
    num_all = Metadata(file, architecture_of(file)).size("block_count")
    prefixes = tuple(f"blk.{layer}." for layer in range(num_layers, num_all))
    return frozenset(name for name in file.tensors if name.startswith(prefixes))


def unread_tensors(file: GgufFile, num_layers: int) -> frozenset[str]:
    """Names of all tensors that belong to layers that guess later tokens."""
    if architecture_of(file) not in _WITH_LATER_LAYERS:
        return frozenset()
    return later_tensors(file, num_layers) | {name for name in file.tensors if name.startswith(_LATER)}


def mlp_width(file: GgufFile, values: Metadata, num_layers: int) -> int:
    """Of the first layer; those of Gemma 4 with the keys and values of others may be twice as wide."""
    if architecture_of(file) in ("gemma4", "gemma3n"):
        return values.sizes_by_layer("feed_forward_length", num_layers)[0]
    if architecture_of(file) in NEMOTRON:  # of layers that are an MLP
        return next(filter(None, values.sizes_by_layer("feed_forward_length", values.size("block_count"))), 1)
    if architecture_of(file) != "qwen35moe":
        return values.size("feed_forward_length")
    experts = values.size("expert_feed_forward_length", 0, least=0)
    return values.size("feed_forward_length", experts, least=0) or experts  # of which mixtures may have none


def num_kv_heads_of(file: GgufFile, values: Metadata, num_layers: int, num_heads: int) -> int:
    """Of the layers with attention; others have none."""
    if architecture_of(file) == "gemma4":  # that of layers with a window is the usual one
        by_layer = values.sizes_by_layer("attention.head_count_kv", num_layers, num_heads)
        kinds = layer_types_of(file, values, 6)
        windowed = (count for count, kind in zip(by_layer, kinds, strict=True) if kind != "full_attention")
        return max(1, next(windowed, by_layer[0]))
    if architecture_of(file) not in _RECURRENT:
        return values.size("attention.head_count_kv", num_heads)
    counts = set(values.sizes_by_layer("attention.head_count_kv", values.size("block_count"), num_heads)) - {0}
    if len(counts) != 1:
        raise UnsupportedArchitectureError(f"'{file.path}' has layers of {sorted(counts)} heads of keys and values.")
    return counts.pop()


def layer_kinds(file: GgufFile, values: Metadata, other: str) -> list[str]:
    """Layers with attention, and others of that kind, which have no heads of keys and values."""
    num_heads, num_layers = values.size("attention.head_count"), values.size("block_count")
    counts = values.sizes_by_layer("attention.head_count_kv", num_layers, num_heads)
    return ["full_attention" if count else other for count in counts]


def layer_types_of(file: GgufFile, values: Metadata, usual_period: int) -> list[str]:
    """Which layers see a window: given one by one, or all but the last of each period."""
    key, num_layers = "attention.sliding_window_pattern", values.size("block_count")
    if isinstance(file.metadata.get(f"{architecture_of(file)}.{key}"), list):
        windowed = values.flags(key)
    else:
        period = values.size(key, usual_period)
        windowed = [(layer + 1) % period != 0 for layer in range(num_layers)]
    if len(windowed) != num_layers:
        raise file.error(f"gives {key} for {len(windowed)} of {num_layers} layers")
    return ["sliding_attention" if is_windowed else "full_attention" for is_windowed in windowed]


def recurrent_layers(file: GgufFile, values: Metadata) -> list[bool]:
    """Which layers keep states: given one by one, or those without heads of keys and values, or with such tensors."""
    key, num_all, num_layers = "attention.recurrent_layers", values.size("block_count"), num_layers_of(file, values)
    values.size("full_attention_interval", 4)  # the usual one, whatever the layers are
    if not values.has(key):
        counts = values.sizes_by_layer("attention.head_count_kv", num_all, 1)[:num_layers]
        return [not counts[layer] or f"blk.{layer}.ssm_conv1d.weight" in file.tensors for layer in range(num_layers)]
    recurrent = values.flags(key)
    if len(recurrent) != num_all:
        raise file.error(f"gives {key} for {len(recurrent)} of {num_all} layers")
    return recurrent[:num_layers]


def heads(file: GgufFile, values: Metadata) -> Config:
    """Head size and rotary embedding, where all of a head rotates; scaling as the file has it."""
    head_dim = head_dim_of(file, values)
    usual = _usual_head_dim(values)  # which Ollama's converter writes as what rotates, whatever the head's size is
    if values.size("rope.dimension_count", usual) != usual and rotary_share(file, values, head_dim) != 1:
        raise file.error("rotates only a part of each head, which its architecture does not")
    return {
        "head_dim": head_dim,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": base_of(file, values),
        "rope_scaling": scaling_of(file, values),
    }


def partial_heads(file: GgufFile, values: Metadata) -> Config:
    """The same where a part of a head may rotate."""
    head_dim = head_dim_of(file, values)
    return {
        "head_dim": head_dim,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": base_of(file, values),
        "rope_scaling": scaling_of(file, values),
        "partial_rotary_factor": rotary_share(file, values, head_dim),
    }


def head_dim_of(file: GgufFile, values: Metadata) -> int:
    """The size of a head, by the width of the model where the file does not say."""
    usual = _usual_head_dim(values)
    head_dim = values.size("attention.key_length", usual)
    if values.size("attention.value_length", usual) != head_dim:
        raise UnsupportedArchitectureError(f"'{file.path}' has heads whose keys and values differ in size.")
    return head_dim


def _usual_head_dim(values: Metadata) -> int:
    return values.size("embedding_length") // values.size("attention.head_count")


def head_dim_with(file: GgufFile, values: Metadata, end: str) -> int:
    """The size of a head of keys, which that of values must be too."""
    head_dim = values.size(f"attention.key_length{end}")
    if values.size(f"attention.value_length{end}", head_dim) != head_dim:
        raise UnsupportedArchitectureError(f"'{file.path}' has heads whose keys and values differ in size.")
    return head_dim
