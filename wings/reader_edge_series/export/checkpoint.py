"""A trained forecasting model in a folder: config.json and model.safetensors, and in `draft` those of the small one."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.user_input import read_bounded
from reader_edge_series.export.patch_module import MODEL_TYPE, PatchConfig, PatchModule

_DRAFT = "draft"
_FILES = ("config.json", "model.safetensors")
_MAX_CONFIG_BYTES = 1 << 20
_MOST = {"num_hidden_layers": 1 << 10, "hidden_size": 1 << 14, "num_patches": 64}  # what trainings choose
_REMEDY = "give a folder written by 'reader-edge series train'"


def write_checkpoint(folder: Path, module: PatchModule, small: PatchModule) -> None:
    """Into an empty folder."""
    for place, each in ((folder, module), (folder / _DRAFT, small)):
        place.mkdir(exist_ok=True)
        each.config.to_json_file(place / _FILES[0])
        (place / _FILES[1]).write_bytes(save(each.state_dict()))


def read_checkpoint(folder: Path) -> tuple[PatchModule, PatchModule | None]:
    """The model, and the small one if there is one. Raises ExportError."""
    small = folder / _DRAFT
    return _read(folder), _read(small) if os.path.lexists(small) else None


def _read(folder: Path) -> PatchModule:
    for name in _FILES:
        check_plain_file(folder / name, ExportError, _REMEDY)
    try:
        config = _config(json.loads(read_bounded(folder / _FILES[0], _MAX_CONFIG_BYTES)))
        tensors = load_file(folder / _FILES[1])
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float32 or not tensor.isfinite().all():
                raise ValueError(f"{name} holds other weights than finite ones of float32")
        with torch.device("meta"):  # sizes of hostile configs take no memory
            module = PatchModule(config)
        module.load_state_dict(tensors, assign=True)
        module.model.rotary_emb = LlamaRotaryEmbedding(module.config)
    except (ValueError, TypeError, KeyError, OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ExportError(f"'{folder}' holds no forecasting model ({reason:.120}): {_REMEDY}.") from None
    module.train(False)
    return module


def _config(fields: Any) -> PatchConfig:
    """Of a file's fields, all of which say what a training of these sizes writes. Raises ValueError or KeyError."""
    if not isinstance(fields, dict) or fields.get("model_type") != MODEL_TYPE:
        raise ValueError("another model_type")
    for name, most in _MOST.items():
        if type(fields[name]) is not int or not 1 <= fields[name] <= most:
            raise ValueError(f"{name} is {fields[name]!r:.40}")
    config = PatchConfig.of_sizes(*(fields[name] for name in _MOST))
    written = {name: value for name, value in config.to_dict().items() if name != "transformers_version"}
    for name in fields.keys() & written.keys():
        if fields[name] != written[name]:
            raise ValueError(f"{name} is {fields[name]!r:.40}, not {written[name]!r:.40}")
    return config
