"""MTP: in a folder of the `speculators` package, and among the tensors of the target's own checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.speculators.formats.eagle3_folder import check_package_keys, layer_config
from reader_edge_export.speculators.formats.speculator_files import SpeculatorFiles
from reader_edge_runtime.errors import UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import MTP

_OWN_TYPES = ("qwen3_5_text", "qwen3_5_moe_text")  # of targets that bring such a layer
_MODEL_TYPES = ("qwen3", *_OWN_TYPES)
_OWN_KEYS = ("num_nextn_predict_layers",)
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


def mtp_source(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder in the format of the `speculators` package."""
    layer = layer_config(folder, config, _MODEL_TYPES)
    check_package_keys(config, _OWN_KEYS)
    check_num_layers(str(folder), config.get("num_nextn_predict_layers", 1))
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
