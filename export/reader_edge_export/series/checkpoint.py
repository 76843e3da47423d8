"""A trained forecasting model in a folder: config.json and model.safetensors, and in `draft` those of the small one."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from reader_edge_export.series.patch_module import MODEL_TYPE, PatchConfig, PatchModule
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.outside.plain_file import check_plain_file
from reader_edge_runtime.outside.user_input import read_bounded

_DRAFT = "draft"
_FILES = ("config.json", "model.safetensors")
_MAX_CONFIG_BYTES = 1 << 20
_REMEDY = "give a folder written by 'reader-edge series train'"


def write_checkpoint(folder: Path, module: PatchModule, small: PatchModule) -> None:
    """Into an empty folder."""
    for place, each in ((folder, module), (folder / _DRAFT, small)):
        place.mkdir(exist_ok=True)
        each.config.to_json_file(place / _FILES[0])
        save_file(each.state_dict(), place / _FILES[1])


def read_checkpoint(folder: Path) -> tuple[PatchModule, PatchModule | None]:
    """The model, and the small one if there is one. Raises ExportError."""
    small = folder / _DRAFT
    return _read(folder), _read(small) if small.is_dir() else None


def _read(folder: Path) -> PatchModule:
    for name in _FILES:
        check_plain_file(folder / name, ExportError, _REMEDY)
    try:
        fields = json.loads(read_bounded(folder / _FILES[0], _MAX_CONFIG_BYTES))
        if fields["model_type"] != MODEL_TYPE:
            raise ValueError("another model_type")
        tensors = load_file(folder / _FILES[1])
        with torch.device("meta"):  # sizes of hostile configs take no memory
            module = PatchModule(PatchConfig(**fields))
        module.load_state_dict(tensors, assign=True)
        module.model.rotary_emb = LlamaRotaryEmbedding(module.config)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, SafetensorError) as error:
        raise ExportError(f"'{folder}' holds no forecasting model ({error!s:.120}): {_REMEDY}.") from None
    module.train(False)
    return module
