"""The files of speculators that draft a block, in the forms of their makers: DFlash, DFlash2, DSpark and JetSpec."""

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reader_edge_export.sources.config.config_keys import is_harmless, named_keys
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.speculators.formats.folders import (
    MAX_SIZE,
    MAX_STATES,
    UNREAD,
    BlockFiles,
    SpeculatorFiles,
    check_package_keys,
    usual_state_ids,
)
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import DFLASH

if TYPE_CHECKING:  # what is checked before an export takes no PyTorch
    from reader_edge_export.speculators.block_networks import BlockConfig

PACKAGED = ("dflash", "dflash2", "dspark")  # values of speculators_model_type
_MODEL_TYPES = ("qwen3", "llama")
_NESTED = "dflash_config"
_MOST_ROWS = 64  # of a block
_MOST_TAPS = 16
_SMALL = 1 << 16
_UNREAD = (*UNREAD, "confidence_head.")  # of DSpark: docs/explanation/measured/drafts/speculators.md
_SLIDING = "sliding_attention"

_Kind = tuple[str, Callable[[Any], bool]]


def _whole(least: int, most: int) -> _Kind:
    return f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= 1e30  # type: ignore[arg-type]


def _are_layers(value: object) -> bool:
    is_list = isinstance(value, list) and 1 <= len(value) <= MAX_STATES
    return is_list and all(type(each) is int and -1 <= each <= MAX_SIZE for each in value)  # type: ignore[attr-defined]


_FLAG: _Kind = ("true or false", lambda value: isinstance(value, bool))
_NUMBER: _Kind = ("a number", _is_number)
_LAYERS: _Kind = (f"a list of at most {MAX_STATES} numbers of layers, each once", _are_layers)
_OWN: dict[str, _Kind] = {  # keys that are no layer's, in dflash_config or beside it
    "block_size": _whole(2, _MOST_ROWS),
    "mask_token_id": _whole(0, MAX_SIZE),
    **dict.fromkeys(("target_layer_ids", "aux_hidden_state_layer_ids"), _LAYERS),
    **dict.fromkeys(("num_target_layers", "draft_vocab_size", "target_hidden_size"), _whole(1, MAX_SIZE)),
    **dict.fromkeys(("is_causal", "causal", "causal_head", "sliding_window_non_causal"), _FLAG),
    **dict.fromkeys(("sample_from_anchor", "enable_confidence_head", "confidence_head_with_markov"), _FLAG),
    **dict.fromkeys(("shift_label", "use_confidence_head"), _FLAG),  # SpecForge's names of the first two
    **dict.fromkeys(("input_embedding_scale", "output_multiplier", "final_logit_softcapping"), _NUMBER),
    "conv_kernel_size": _whole(1, _MOST_TAPS),
    **dict.fromkeys(("conv_group_size", "selector_rank", "selector_top_k"), _whole(1, _SMALL)),
    "markov_rank": _whole(0, _SMALL),
    "markov_head_type": ('"vanilla"', lambda value: value == "vanilla"),
    "projector_type": ('"dflash", "dflash2" or "dspark"', lambda value: value in PACKAGED),
    "attention_mode": ('"gqa" or "mha"', lambda value: value in ("gqa", "mha")),
    "num_anchors": _whole(1, MAX_SIZE),  # of training, as what follows
    **dict.fromkeys(("confidence_head_alpha", "loss_decay_gamma", "selector_loss_weight"), _NUMBER),
}
_REFUSED = {  # what a folder calls itself, or a part of its tensors' names -> what it is, and why it is refused
    "laguna": "Laguna's form of DFlash, whose context goes through gates and norms of its own",
    ".qkv_proj.": "Laguna's form of DFlash, whose context goes through gates and norms of its own",
    "domino": "Domino, where each drafted token takes another product with all tokens, which is dear on a CPU",
    "prefix_gru": "Domino, where each drafted token takes another product with all tokens, which is dear on a CPU",
    "lilicorr": "LiLiCorr, which runs a second network over the candidates",
    "xpress": "XPress, which goes over a block in several passes",
    "dflare": "DFlare, where each layer joins states of its own",
    "eagle4": "EAGLE-4, whose licence forbids competing use",
    "gemma4dspark": "DSpark with layers of Gemma 4, which are not read",
}


def refuse_by_name(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise UnsupportedArchitectureError for what is known and not read, with the reason."""
    nested = config.get(_NESTED)
    inner = nested.get("projector_type") if isinstance(nested, dict) else None
    architectures = config.get("architectures")
    given = (config.get("speculators_model_type"), config.get("model_type"), config.get("projector_type"), inner)
    names = [*given, *(architectures if isinstance(architectures, list) else ())]
    called = " ".join(name for name in names if isinstance(name, str)).lower().replace("-", "")
    for part, what in _REFUSED.items():
        if part in called or any(part in name for name in tensors):
            raise UnsupportedArchitectureError(
                f"'{folder}' holds a speculator of {what}: give one of DFlash, DFlash2, DSpark, EAGLE-3 or MTP."
            )


def is_block_folder(config: Mapping[str, Any]) -> bool:
    """Whether config.json, which has no speculators_model_type, is that of such a speculator."""
    return _NESTED in config or {"block_size", "mask_token_id"} <= config.keys()


def block_source(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder as its makers publish it, or in the format of the `speculators` package.

    Raises ExportError for wrong values, UnsupportedArchitectureError for keys that nothing accounts for.
    """
    is_packaged = "speculators_model_type" in config
    values, layer = _values(folder, config), _layer(folder, config, is_packaged)
    name = "aux_hidden_state_layer_ids" if is_packaged else "target_layer_ids"
    ids = values.get(name)
    block = BlockFiles(
        layer_ids=None if ids is None else tuple(ids),
        is_packaged=is_packaged,
        num_target_layers=values.get("num_target_layers"),
        is_causal=_is_causal(folder, values, config.get("speculators_model_type") == "dflash2"),
    )
    named = {  # files have codebooks with and without a suffix
        f"{name}.weight" if name.endswith("_codebook") else name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(_UNREAD)
    }
    switches = _switches(folder, config, values, layer)
    sizes = values.get("draft_vocab_size"), values.get("target_hidden_size")
    return SpeculatorFiles(DFLASH, folder, layer, named, *sizes, None, switches, block)


def _values(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Own keys with their values, checked; those in dflash_config overrule others, as dflash reads them."""
    nested = config.get(_NESTED) or {}
    if not isinstance(nested, dict):
        raise _wrong(folder, _NESTED, nested, "an object")
    unknown = {key: value for key, value in nested.items() if value is not None and key not in _OWN}
    unknown = {key: value for key, value in unknown.items() if not is_harmless(key)}
    if unknown:
        raise UnsupportedArchitectureError(
            f"{_NESTED} of the speculator in '{folder}' sets {named_keys(unknown)}, which is not known to be read: its "
            "drafts may be others, so remove what has no effect."
        )
    values = {key: each[key] for each in (config, nested) for key in _OWN if each.get(key) is not None}
    for key, value in values.items():
        words, is_usable = _OWN[key]
        if not is_usable(value):
            raise _wrong(folder, key, value, words)
    return values


def _layer(folder: Path, config: Mapping[str, Any], is_packaged: bool) -> dict[str, Any]:
    """What config.json says of the decoder layers, which are Qwen 3's whatever they are called."""
    if is_packaged:
        given = config.get("transformer_layer_config")
        if not isinstance(given, dict):
            raise ExportError(
                f"'{folder}' gives no transformer_layer_config in its config.json: fetch the speculator again."
            )
        check_package_keys(config, (*_OWN, _NESTED))
        layer = dict(given)
    else:
        layer = {key: value for key, value in config.items() if key not in (*_OWN, _NESTED)}
    kind = layer.get("model_type", "qwen3")
    if kind not in _MODEL_TYPES:
        raise UnsupportedArchitectureError(
            f"The layers of the speculator in '{folder}' are of the type {kind!r:.80}, of which "
            f"{', '.join(_MODEL_TYPES)} can be exported."
        )
    layer["model_type"] = "qwen3"
    heads, width = layer.get("num_attention_heads"), layer.get("hidden_size")
    if kind == "llama" and layer.get("head_dim") is None and type(heads) is type(width) is int and 0 < heads <= width:
        layer["head_dim"] = width // heads
    layer = {key: value for key, value in layer.items() if key != "head_dim" or value is not None}
    types = layer.get("layer_types")
    if isinstance(types, list) and _SLIDING in types and layer.get("sliding_window"):
        layer.setdefault("use_sliding_window", True)
    angles = layer.get("rope_parameters")
    if isinstance(angles, dict) and isinstance(angles.get(_SLIDING), dict):
        layer["rope_parameters"] = angles[_SLIDING]  # which `speculators` takes for all layers
    return layer


def _is_causal(folder: Path, values: Mapping[str, Any], is_second: bool) -> bool | None:
    """Of all layers, whether rows see no later row of the block; None where windowed layers alone are causal.

    is_second: whether it is a DFlash2 of the `speculators` package, whose windowed layers are not unless it says so.
    """
    names = ("is_causal", "causal", "causal_head")  # of dflash, vLLM and JetSpec
    given = {values[name] for name in names if name in values}
    if len(given) > 1:
        raise ExportError(
            f"The speculator in '{folder}' says of its block that it is causal and that it is not: correct "
            f"{' or '.join(name for name in names if name in values)}."
        )
    return False if values.get("sliding_window_non_causal", is_second) else next(iter(given), None)


def _switches(
    folder: Path,
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    layer: Mapping[str, Any],
) -> dict[str, Any]:
    """What `BlockConfig` has beside sizes, layers and states."""
    architectures = config.get("architectures")
    kinds = (config.get("speculators_model_type"), values.get("projector_type"), architectures)
    kind = str(kinds).lower()
    is_second, is_dspark = "dflash2" in kind or "conv_kernel_size" in values, "dspark" in kind
    mask = values.get("mask_token_id")
    if mask is None:
        raise ExportError(f"The speculator in '{folder}' does not say mask_token_id in its config.json: add it.")
    num_rows = layer.get("vocab_size")
    if type(num_rows) is int and mask >= num_rows:
        raise ExportError(
            f"The speculator in '{folder}' gives mask_token_id as {mask}, and the embedding has {num_rows} rows: "
            "correct it."
        )
    rank = values.get("markov_rank", 256 if is_dspark else 0)
    taps, group = (values.get("conv_kernel_size", 2), values.get("conv_group_size", 16)) if is_second else (0, 16)
    width = layer.get("hidden_size")
    if is_second and type(width) is int and width % group:
        raise _wrong(folder, "conv_group_size", group, f"a divisor of hidden_size, {width}")
    return {
        "block_size": values.get("block_size", 8 if "speculators_model_type" in config else 16),
        "mask_token_id": mask,
        "drafts_from_anchor": values.get("sample_from_anchor", values.get("shift_label", is_dspark)),
        "embedding_scale": float(values.get("input_embedding_scale", 1)),
        "logit_scale": float(values.get("output_multiplier", 1)),
        "softcap": max(float(values.get("final_logit_softcapping", 0)), 0.0),
        "num_taps": taps,
        "group_size": group,
        "selector_rank": values.get("selector_rank", 256) if is_second else 0,
        "markov_rank": rank,
    }


def _wrong(folder: Path, name: str, value: object, words: str) -> ExportError:
    return ExportError(
        f"The speculator in '{folder}' gives {name} as {reprlib.repr(value)}, which must be {words}: correct its "
        "config.json."
    )


def block_state_ids(source: SpeculatorFiles, num_draft_layers: int, num_layers: int) -> tuple[int, ...]:
    """Which states of a target of so many layers are read, see `Manifest.state_ids`.

    Makers number what leaves a layer, as transformers reports it: behind the final norm for the last one, and -1 for
    the embedding. The `speculators` package numbers what enters a layer, as states are numbered here.
    """
    assert source.block is not None
    ids = source.block.layer_ids
    if source.block.is_packaged:
        return ids or usual_state_ids(num_layers)
    if ids is None and num_draft_layers == 1:
        ids = (num_layers // 2,)
    elif ids is None:
        span, last = num_layers - 4, num_draft_layers - 1
        ids = tuple(round(1 + index * span / last) for index in range(num_draft_layers))
    return tuple(each + 1 + (each + 1 >= num_layers) for each in ids)


def block_config(
    source: SpeculatorFiles, layer: Any, draft_vocab_size: int, num_states: int, state_size: int
) -> "BlockConfig":
    """layer: the config of the layers, as their class has it."""
    from reader_edge_export.speculators.block_networks import BlockConfig

    block = source.block
    assert block is not None
    windowed = [kind == _SLIDING for kind in layer.layer_types]
    # `speculators` counts a window back from the block's first row, which its first row does not include.
    window = (layer.sliding_window or 0) and layer.sliding_window + block.is_packaged
    return BlockConfig(
        layer=layer,
        draft_vocab_size=draft_vocab_size,
        num_states=num_states,
        state_size=state_size,
        layer_is_causal=tuple(each if block.is_causal is None else block.is_causal for each in windowed),
        windows=tuple(window if each else 0 for each in windowed),
        **source.switches,
    )
