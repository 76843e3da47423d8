"""The files of a trained speculator, read from config.json and the headers of its weights: EAGLE-3, MLP and MTP."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reader_edge_export.sources.config.config_keys import is_harmless, named_keys
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import EAGLE3, MLP, MTP

_MODEL_TYPES = ("llama", "qwen3")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_IDS = "eagle_aux_hidden_state_layer_ids"
_OWN_KEYS = (*_SWITCHES, _IDS, "draft_vocab_size", "target_hidden_size", "embed_requires_grad", "eagle_config")
_PACKAGE_KEYS = ("speculators_model_type", "speculators_config", "speculators_version", "transformer_layer_config")
_INERT = {  # of eagle_config: what such a speculator has anyway
    **dict.fromkeys(("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"), True),
    "next_layer_regular": True,
    **dict.fromkeys(("parallel_draft_step", "parallel_draft_heads_num_layers"), 1),  # no heads: one fewer than steps
}
UNREAD = ("verifier_norm.", "verifier_lm_head.")  # the target's, by which it was trained
MAX_STATES = 12  # a package has those of most states besides
MAX_SIZE = (1 << 53) - 1  # what a number in JSON means everywhere
_OWN_TYPES = ("qwen3_5_text", "qwen3_5_moe_text")  # of targets that bring such a layer
_PREFIX = "mtp."
MTP_LAYER = "mtp_layers.0."  # of the module
_NAMES = {  # of checkpoints -> of the module; the first that fits
    "fc.": f"{MTP_LAYER}input_proj.",
    "norm.": f"{MTP_LAYER}final_layernorm.",
    "pre_fc_norm_hidden.": f"{MTP_LAYER}hidden_layernorm.",
    "pre_fc_norm_embedding.": f"{MTP_LAYER}token_layernorm.",
    "layers.0.": MTP_LAYER,
    "embed_tokens.": "embed_tokens.",
}


@dataclass(frozen=True, slots=True)
class BlockFiles:
    """What else a speculator that drafts a block says of its target's states and of what its rows see.

    layer_ids: as it numbers layers, see `block_state_ids`; None where it does not say. is_packaged: whether it is in
    the format of the `speculators` package. num_target_layers: of its target. is_causal: of all layers, whether rows
    see no later row of the block; None where windowed layers alone are so.
    """

    layer_ids: tuple[int, ...] | None
    is_packaged: bool
    num_target_layers: int | None
    is_causal: bool | None


@dataclass(frozen=True, slots=True)
class SpeculatorFiles:
    """format: one of SPECULATOR_FORMATS. folder: where its weights are, or its GGUF file. layer: the config of its
    decoder layers, as config.json has configs.

    tensors: by the names that its module has for them. state_ids: which states of the target it reads, in the order in
    which they are joined; None where it does not say. switches: what else `Eagle3Config` or `BlockConfig` has, by name.
    block: of one that drafts a block. centroids: of an assistant's head, how many there are and how many are chosen;
    None without.
    """

    format: str
    folder: Path
    layer: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    draft_vocab_size: int | None = None
    target_size: int | None = None
    state_ids: tuple[int, ...] | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)
    block: BlockFiles | None = None
    centroids: tuple[int, int] | None = None

    @property
    def files(self) -> list[Path]:
        """All that is read of it."""
        config = [self.folder / "config.json"] if self.folder.is_dir() else []
        return sorted({*config, *(tensor.file for tensor in self.tensors.values())})


def eagle3_source(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder in the format of the `speculators` package."""
    layer = layer_config(folder, config, _MODEL_TYPES)
    check_package_keys(config, _OWN_KEYS)
    return _source(folder, config, layer, tensors)


def mlp_source(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder of `train-drafter`'s own format, whose config is that of the `speculators` package."""
    layer = layer_config(folder, config, ("llama",))
    check_package_keys(config, (size_key := "draft_vocab_size",))
    return SpeculatorFiles(MLP, folder, layer, tensors, size_of(config, size_key))


def plain_eagle3_source(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> SpeculatorFiles:
    """Of a folder whose config is that of a Llama: its only layer is called midlayer, or layers.0."""
    layer = {key: value for key, value in config.items() if key not in _OWN_KEYS}
    check_layer(folder, layer, _MODEL_TYPES)
    named = {
        f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name: tensor
        for name, tensor in tensors.items()
    }
    if len(named) < len(tensors):
        raise ExportError(f"'{folder}' holds both midlayer and layers.0: remove one of them.")
    return _source(folder, config, layer, named)


def layer_config(folder: Path, config: Mapping[str, Any], model_types: Sequence[str]) -> dict[str, Any]:
    """What config.json says of the decoder layers in the format of the `speculators` package."""
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ExportError(
            f"'{folder}' gives no transformer_layer_config in its config.json: fetch the speculator again."
        )
    check_layer(folder, layer, model_types)
    return layer


def check_layer(folder: Path, layer: Mapping[str, Any], model_types: Sequence[str]) -> None:
    """Raise UnsupportedArchitectureError unless layers are of a kind that is read, ExportError for wrong values."""
    if layer.get("model_type") not in model_types:
        raise UnsupportedArchitectureError(
            f"The layers of the speculator in '{folder}' are of the type {layer.get('model_type')!r:.80}, of which "
            f"{', '.join(model_types)} can be exported."
        )
    args = hf_config(layer)
    if args.get("use_sliding_window") or "sliding_attention" in (args.get("layer_types") or ()):
        raise UnsupportedArchitectureError(
            f"The layers of the speculator in '{folder}' see a window of tokens, which no package holds: give one "
            "whose layers see all of them."
        )


def check_package_keys(config: Mapping[str, Any], own: Iterable[str]) -> None:
    """Raise UnsupportedArchitectureError for a key that is set and that nothing accounts for."""
    known = (*own, *_PACKAGE_KEYS)
    unknown = {key: value for key, value in config.items() if value and key not in known and not is_harmless(key)}
    if unknown:
        raise UnsupportedArchitectureError(
            f"The speculator's config.json sets {named_keys(unknown)}, which is not known to be read: its drafts may "
            "be others, so remove what has no effect."
        )


def _source(
    folder: Path, config: Mapping[str, Any], layer: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> SpeculatorFiles:
    switches = {name: config.get(name) or False for name in _SWITCHES}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise wrong_value(name, value, "true or false")
    if switches["norm_before_fc"] and switches["fc_norm"]:
        raise ExportError("The speculator's config.json sets both norm_before_fc and fc_norm: remove one of them.")
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(UNREAD)}
    size, target_size = size_of(config, "draft_vocab_size"), size_of(config, "target_hidden_size")
    return SpeculatorFiles(EAGLE3, folder, layer, own, size, target_size, _state_ids(config), switches)


def size_of(config: Mapping[str, Any], name: str) -> int | None:
    """A size that config.json gives, or None. Raises ExportError for what is none."""
    value = config.get(name)
    if value is not None and (type(value) is not int or not 1 <= value <= MAX_SIZE):
        raise wrong_value(name, value, f"a whole number from 1 to {MAX_SIZE}")
    return value


def _state_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    inner = config.get("eagle_config") or {}
    if not isinstance(inner, dict):
        raise wrong_value("eagle_config", inner, "an object")
    unknown = {key: value for key, value in inner.items() if value and key != _IDS and _INERT.get(key) != value}
    if unknown:
        raise UnsupportedArchitectureError(
            f"eagle_config of the speculator sets {named_keys(unknown)}, which is not known to be read: its drafts "
            "may be others, so remove what has no effect."
        )
    ids = config.get(_IDS) or inner.get(_IDS)
    if ids is None:
        return None
    is_list = isinstance(ids, list) and len(ids) <= MAX_STATES
    if not is_list or any(type(each) is not int or not 0 <= each <= MAX_SIZE for each in ids):
        raise wrong_value(_IDS, ids, f"a list of at most {MAX_STATES} numbers of layers")
    return tuple(ids)


def usual_state_ids(num_layers: int) -> tuple[int, ...]:
    """The states of a target of so many layers that EAGLE-3 and the `speculators` package read where no config says."""
    return 2, num_layers // 2, num_layers - 3


def wrong_value(name: str, value: object, words: str) -> ExportError:
    """For a value of config.json. words: what it must be."""
    return ExportError(
        f"The speculator's config.json gives {name} as {reprlib.repr(value)}, which must be {words}: correct it."
    )


def mtp_source(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder in the format of the `speculators` package."""
    layer, key = layer_config(folder, config, ("qwen3", *_OWN_TYPES)), "num_nextn_predict_layers"
    check_package_keys(config, (key,))
    check_num_layers(str(folder), config.get(key, 1))
    return SpeculatorFiles(MTP, folder, layer, tensors)


def own_mtp_source(target: HuggingFaceSource, tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles | None:
    """Of the target's own checkpoint, all of whose tensors are given; None where it has none."""
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    named = {_named(name): tensor for name, tensor in own.items() if name.startswith(_PREFIX)}
    if target.architecture not in _OWN_TYPES or not named:
        return None
    check_num_layers(target.short_name, target.config.get("mtp_num_hidden_layers", 1))
    return SpeculatorFiles(MTP, target.folder, target.config, named)


def _named(name: str) -> str:
    """What the module calls a tensor; others keep their names, and have no place in it."""
    part = name.removeprefix(_PREFIX)
    before = next((before for before in _NAMES if part.startswith(before)), None)
    return name if before is None else _NAMES[before] + part.removeprefix(before)


def check_num_layers(source: str, number: object) -> None:
    """Raise UnsupportedArchitectureError for several layers for later tokens."""
    if number != 1:
        raise UnsupportedArchitectureError(
            f"'{source}' has {number!r:.20} layers for later tokens; a speculator of one is read."
        )
