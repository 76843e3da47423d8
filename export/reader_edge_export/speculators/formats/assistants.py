"""The files of Gemma 4's assistants, whose layers read keys and values of their target's last layers that have some."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from reader_edge_export.sources.blank_model import built_config, without_memory
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.folder.folder_weights import weights_of
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.formats import plain_config
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.weights import Weights
from reader_edge_export.speculators.assistant_network import AssistantConfig, AssistantModule
from reader_edge_export.speculators.centroid_head import CANDIDATES, Centroids
from reader_edge_export.speculators.formats.folders import SpeculatorFiles, check_package_keys, size_of, wrong_value
from reader_edge_export.speculators.formats.open_speculator import (
    EMBEDDING,
    HEAD,
    OpenSpeculator,
    TargetSizes,
    check_rotary,
    read_whole,
    unlike,
)
from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import ASSISTANT

LAYER_TYPE = "gemma4_text"
_OWN_EMBEDDING, _CENTROIDS = "model.embed_tokens.weight", "masked_embedding.centroids.weight"
_ORDER = "masked_embedding.token_ordering"
_SIZES = {"backbone_hidden_size": 1536, "num_centroids": 2048, "centroid_intermediate_top_k": 32}  # where it says none
_ABSENT = ("enable_moe_block", "use_double_wide_mlp", "hidden_size_per_layer_input")  # of its layers


def assistant_source(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder of `Gemma4AssistantForCausalLM`."""
    layer = config.get("text_config")
    if not isinstance(layer, dict) or layer.get("model_type") != LAYER_TYPE:
        raise ExportError(
            f"'{folder}' gives no text_config of the model_type {LAYER_TYPE} in its config.json: fetch the assistant "
            "again."
        )
    check_package_keys(config, ("tie_word_embeddings", "use_ordered_embeddings", *_SIZES))
    for name in filter(layer.get, _ABSENT):
        raise UnsupportedArchitectureError(
            f"The assistant in '{folder}' sets {name}, which no layer without keys of its own has: fetch it again."
        )
    num_layers = layer.get("num_hidden_layers")
    if type(num_layers) is not int or not 1 <= num_layers <= len(tensors):
        raise wrong_value("num_hidden_layers", num_layers, f"a number of layers in {len(tensors)} tensors")
    is_ordered = config.get("use_ordered_embeddings") or False
    if not isinstance(is_ordered, bool):
        raise wrong_value("use_ordered_embeddings", is_ordered, "true or false")
    sizes = {name: size_of(config, name) or usual for name, usual in _SIZES.items()}
    return SpeculatorFiles(
        ASSISTANT,
        folder,
        {key: value for key, value in layer.items() if key != "vocab_size_per_layer_input"}
        | {"num_kv_shared_layers": 0},  # none of its own lends any
        _named(folder, tensors, is_ordered),
        target_size=sizes["backbone_hidden_size"],
        centroids=(sizes["num_centroids"], sizes["centroid_intermediate_top_k"]) if is_ordered else None,
    )


def _named(folder: Path, tensors: Mapping[str, StoredTensor], is_ordered: bool) -> dict[str, StoredTensor]:
    """By the module's names. What it looks up is the target's: its embedding is its head."""
    own = dict(tensors)
    head = own.pop(HEAD, None)
    embedding = own.pop(_OWN_EMBEDDING, None)
    if head is not None and embedding is not None and not head.equals(embedding):
        raise ExportError(
            f"'{folder}' holds {HEAD!r} and {_OWN_EMBEDDING!r}, which stand for the same weights and differ: fetch the "
            "assistant again."
        )
    rows, centroids = head or embedding, own.pop(_CENTROIDS, None) if is_ordered else None
    named = {name.removeprefix("model."): tensor for name, tensor in own.items()}
    if rows is not None:
        named[CANDIDATES if is_ordered else HEAD] = rows
    if centroids is not None:
        named[HEAD] = centroids
    return named


def open_assistant(source: SpeculatorFiles, target: Source) -> OpenSpeculator:
    """Compare files and config of an assistant with its target. Nothing is read but the order of its tokens.

    Raises ExportError with one sentence for what does not fit.
    """
    folder, tensors, sizes = source.folder, dict(source.tensors), TargetSizes.of(target)
    lender: Any = built_config(hf_config(plain_config(target.config)), target.short_name)
    if lender.model_type != LAYER_TYPE:
        raise ExportError(
            f"The assistant in '{folder}' is for a model of Gemma 4, and '{target.short_name}' is of the type "
            f"{lender.model_type}: give the speculator of this model."
        )
    config: Any = built_config(hf_config(source.layer), str(folder))
    check_rotary(source, config)
    if config.vocab_size != sizes.vocab_size:
        raise unlike(source, "a vocabulary", config.vocab_size, sizes.vocab_size)
    if source.target_size != sizes.hidden_size:
        raise unlike(source, "hidden states", source.target_size, sizes.hidden_size)
    assistant = AssistantConfig(
        config, sizes.hidden_size, _lent_layers(source, config, lender), _centroids(source, config)
    )
    module = cast(AssistantModule, without_memory(lambda: AssistantModule(assistant), str(folder)))
    order = tensors.pop(_ORDER, None)
    weights: Weights = weights_of(folder, module, tensors, (EMBEDDING,))
    if assistant.centroids is not None:
        module.token_ids = _token_ids(folder, order, sizes.vocab_size)
        weights = _Ordered(weights, module.token_ids.numpy())
    return OpenSpeculator(source, module, weights, (EMBEDDING,), (sizes.num_layers + 1,))


def _lent_layers(source: SpeculatorFiles, config: Any, lender: Any) -> dict[str, int]:
    """By kind of layer, the last of the target's that has keys and values of its own."""
    num_own = lender.num_hidden_layers - (lender.num_kv_shared_layers or 0)
    lent = {kind: number for number, kind in enumerate(lender.layer_types[:num_own])}
    for number, kind in enumerate(config.layer_types):
        own = config.per_layer_config[number]
        if kind not in lent:
            raise unlike(source, "layers of the type", kind, ", ".join(lent))
        theirs = lender.per_layer_config[lent[kind]]
        if (own.num_key_value_heads, own.head_dim) != (theirs.num_key_value_heads, theirs.head_dim):
            raise unlike(
                source,
                f"keys of {kind} in heads and numbers",
                f"{own.num_key_value_heads} x {own.head_dim}",
                f"{theirs.num_key_value_heads} x {theirs.head_dim}",
            )
        if config.num_attention_heads % own.num_key_value_heads:
            raise ExportError(
                f"The assistant in '{source.folder}' has {config.num_attention_heads} query heads over "
                f"{own.num_key_value_heads} key heads by its config.json: correct them."
            )
    return {kind: lent[kind] for kind in config.layer_types}


def _centroids(source: SpeculatorFiles, config: Any) -> Centroids | None:
    if source.centroids is None:
        return None
    num_centroids, num_chosen = source.centroids
    if config.vocab_size % num_centroids:
        raise wrong_value("num_centroids", num_centroids, f"a divisor of the {config.vocab_size} tokens")
    if num_chosen > num_centroids:
        raise wrong_value("centroid_intermediate_top_k", num_chosen, f"at most the {num_centroids} of num_centroids")
    return Centroids(num_centroids, num_chosen)


def _token_ids(folder: Path, order: StoredTensor | None, vocab_size: int) -> torch.Tensor:
    ids = None if order is None else read_whole(folder, order, "token_ordering", vocab_size)
    if ids is None:
        raise ExportError(f"The weights in '{folder}' lack {_ORDER}: fetch the assistant again.")
    if not torch.equal(ids.sort().values, torch.arange(vocab_size)):
        raise ExportError(
            f"'{folder}' holds token_ordering, which must name each of the {vocab_size} tokens once: fetch the "
            "assistant again."
        )
    return ids


@dataclass(frozen=True, slots=True)
class _Ordered(Weights):
    """own: weights whose CANDIDATES come in this order of their rows."""

    own: Weights
    order: Int64Array

    def read(self, name: str) -> Float32Array:
        return self.own.read(name)[self.order] if name == CANDIDATES else self.own.read(name)

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        if name == CANDIDATES:
            return self.own.read(name)[self.order[start:stop]]
        return self.own.read_rows(name, start, stop)
