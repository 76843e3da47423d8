"""A LoRA or DoRA as PEFT writes it: adapter_config.json and adapter_model.safetensors.

What the keys mean: https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/config.py
"""

import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reader_edge_runtime.adapters.adapter import MERGE, MOST, Adapter, Change, StoredFactors
from reader_edge_runtime.errors import AdapterError
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.safetensors_file import StoredNumbers, stored_numbers
from reader_edge_runtime.untrusted.untrusted_json import read_json

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_MAX_CONFIG_BYTES = 1 << 24
_REMEDY = "give the folder of an adapter as PEFT saves it"
_DOWN, _UP, _LENGTHS = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
_KEY = re.compile(rf"base_model\.model\.([\w.]{{1,400}})\.({re.escape(_DOWN)}|{re.escape(_UP)}|{_LENGTHS})", re.ASCII)
_PLAIN_NAME = re.compile(r"[\w.]{1,400}", re.ASCII)
# Of training, of which modules there are, which the names of tensors say, and of what hangs on the module anyway.
_IDLE = {
    *("auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "exclude_modules"),
    *("fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core"),
    *("peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type"),
    "velora_config",
}
_SIZES, _PATTERNS = ("r", "lora_alpha"), ("rank_pattern", "alpha_pattern")
_CHOICES: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    # Others take what factors begin with out of the model's weights, and its files do not show that.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal", "mica"),
    **dict.fromkeys(("use_rslora", "use_dora"), (None, True, False)),
}
_OFF: tuple[object, ...] = (None, False, [], {}, "none")  # of all other keys


@dataclass(frozen=True, slots=True)
class PeftFolder(Adapter):
    """changes: by modules."""

    @classmethod
    def open(cls, folder: Path) -> "PeftFolder":
        """Raises AdapterError."""
        check_plain_file(folder / CONFIG_NAME, AdapterError, _REMEDY)
        config = read_json(folder / CONFIG_NAME, AdapterError, "fetch the adapter again", _MAX_CONFIG_BYTES)
        _check_config(folder, config)
        path = folder / WEIGHTS_NAME
        if (folder / _PICKLE).exists() and not path.exists():
            raise AdapterError(
                f"'{folder}' holds its weights as {_PICKLE}, a pickle that may run code: save the adapter as "
                "safetensors (PeftModel.save_pretrained(...))."
            )
        check_plain_file(path, AdapterError, _REMEDY)
        parts = {_DOWN, _UP, *([_LENGTHS] if config.get("use_dora") else [])}
        tensors = _by_module(folder, stored_numbers(path, AdapterError, "fetch the adapter again"), parts)
        base = config.get("base_model_name_or_path")
        config |= {key: _placed(config.get(key)) for key in _PATTERNS}
        changes = {module: _change(folder, config, module, each) for module, each in tensors.items()}
        return cls(folder, base if isinstance(base, str) else "", changes)

    @property
    def files(self) -> list[Path]:
        return [self.path / CONFIG_NAME, self.path / WEIGHTS_NAME]


def _change(folder: Path, config: Mapping[str, Any], module: str, tensors: Mapping[str, StoredNumbers]) -> Change:
    """Raises AdapterError where the config says another rank than the factors have."""
    lengths = tensors.get(_LENGTHS)
    up, down = tensors[_UP].shape, tensors[_DOWN].shape
    scale = 0.0 if not down else _scale(folder, config, module, down[0])
    return Change(up, down, None if lengths is None else lengths.shape, partial(_read, tensors, scale))


def _scale(folder: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
    """By what the product of a module's factors is multiplied."""
    given = _of_module(config["rank_pattern"], module, config.get("r", 8))
    if rank and given != rank:
        raise AdapterError(
            f"'{folder}' holds {module:.100} in rank {rank}, where its {CONFIG_NAME} says {given:g}: fetch the "
            "adapter again."
        )
    alpha = _of_module(config["alpha_pattern"], module, config.get("lora_alpha", 8))
    return alpha / ((math.sqrt(rank) if config.get("use_rslora") else rank) or 1)


def _read(tensors: Mapping[str, StoredNumbers], scale: float) -> StoredFactors:
    values = {part: tensor.read() for part, tensor in tensors.items()}
    return StoredFactors(values[_UP] * np.float32(scale), values[_DOWN], values.get(_LENGTHS))


def _by_module(folder: Path, tensors: Iterable[StoredNumbers], wanted: set[str]) -> dict[str, dict[str, StoredNumbers]]:
    """Raises AdapterError for tensors that are no part of a LoRA, and for modules whose parts are not those wanted."""
    found: dict[str, dict[str, StoredNumbers]] = {}
    for tensor in tensors:
        name = tensor.name
        if (key := _KEY.fullmatch(name)) is None:
            raise AdapterError(
                f"'{folder}' holds {name!r:.100}, which is no factor of a linear layer, and nothing else is read of "
                f"adapters: {MERGE}."
            )
        if not tensor.is_float:
            raise AdapterError(
                f"'{folder}' holds {name!r:.100} as {tensor.dtype}, which is no number of an adapter: fetch it again."
            )
        found.setdefault(key[1], {})[key[2]] = tensor
    for module, parts in found.items():
        if unlike := sorted(parts.keys() ^ wanted):
            verb = "has a" if unlike[0] in parts else "lacks the"
            raise AdapterError(
                f"'{folder}' {verb} {unlike[0]} of {module:.100}, unlike what its {CONFIG_NAME} says: fetch the "
                "adapter again."
            )
    if not found:
        raise AdapterError(f"'{folder}' holds no factors: fetch the adapter again.")
    return found


def _check_config(folder: Path, config: Any) -> None:
    """Raise AdapterError for a value that is not read, or cannot be."""
    if not isinstance(config, dict):
        raise AdapterError(f"'{folder / CONFIG_NAME}' holds no object: fetch the adapter again.")
    for key, value in {"peft_type": None, **config}.items():
        if key in _SIZES:
            is_read = _is_size(value)
        elif key in _PATTERNS:
            is_read = value is None or _is_pattern(value)
        else:
            is_read = key in _IDLE or value in _CHOICES.get(key, _OFF)
        if not is_read:
            raise AdapterError(
                f"'{folder / CONFIG_NAME}' sets {reprlib.repr(key)} to {reprlib.repr(value)}, which is not read here: "
                f"{MERGE}."
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST


def _is_pattern(value: object) -> bool:
    """PEFT takes any regular expression for a name, and one can be made to run for years."""
    if not isinstance(value, dict):
        return False
    return all(_PLAIN_NAME.fullmatch(name) and _is_size(size) for name, size in value.items())


def _placed(pattern: Mapping[str, float] | None) -> dict[str, tuple[int, float]]:
    """Each name's place and value, which are looked up: a folder may have any number of modules and names."""
    return {name: (place, value) for place, (name, value) in enumerate((pattern or {}).items())}


def _of_module(pattern: Mapping[str, tuple[int, float]], module: str, usual: float) -> float:
    """What a pattern says of a module: by its name, or by what that ends in; of several, the first."""
    parts = module.split(".") if pattern else []
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return min((pattern[end] for end in ends if end in pattern), default=(0, usual))[1]
