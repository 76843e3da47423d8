"""Folders of mixtures as makers write them: experts apart, as one tensor, or in MXFP4."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from safetensors.torch import load_file, save_file

_OWN = re.compile(r"(.*)\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def quantized(folder: Path) -> Path:
    """A folder whose config says that its experts are in MXFP4."""
    config = json.loads((folder / "config.json").read_text())
    settings = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def copy_folder(source: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a folder, its tensors changed in place."""
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def mxfp4(tensors: dict[str, torch.Tensor]) -> None:
    """Experts as gpt-oss has them: random numbers of four bits, powers of two near those of the weights."""
    rng = np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        num_experts, num_inputs, num_outputs = tensors.pop(name).shape
        shape = num_experts, num_outputs, num_inputs // 32
        tensors[f"{name}_blocks"] = torch.from_numpy(rng.integers(0, 256, (*shape, 16)).astype(np.uint8))
        tensors[f"{name}_scales"] = torch.from_numpy(rng.integers(121, 125, shape).astype(np.uint8))


def widened(tensors: dict[str, torch.Tensor]) -> None:
    """The same in fp32, as llama.cpp reads it."""
    for name in [name for name in tensors if name.endswith("_blocks")]:
        scales = tensors.pop(name.replace("_blocks", "_scales")).numpy()
        blocks = tensors.pop(name).numpy()
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
        halves = np.concatenate([codes[..., :16] | codes[..., 16:] << 4], -1)  # llama.cpp's order
        rows = np.concatenate([scales[..., None], halves], -1).reshape(-1, 17)
        values = dequantize(rows, Kind.MXFP4).reshape(*blocks.shape[:2], -1)
        tensors[name.removesuffix("_blocks")] = torch.from_numpy(values).transpose(1, 2).contiguous()


def fused(tensors: dict[str, torch.Tensor]) -> None:
    """An expert's own tensors as one of all."""
    own: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name in list(tensors):
        if found := _OWN.fullmatch(name):
            own.setdefault(found[1], {})[int(found[2]), found[3]] = tensors.pop(name)
    for mlp, parts in own.items():
        experts = sorted({expert for expert, _ in parts})
        gate_up = [torch.cat([parts[each, "gate"], parts[each, "up"]]) for each in experts]
        tensors[f"{mlp}.experts.gate_up_proj"] = torch.stack(gate_up)
        tensors[f"{mlp}.experts.down_proj"] = torch.stack([parts[each, "down"] for each in experts])
