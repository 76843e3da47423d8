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
from typing import TYPE_CHECKING, Any

import numpy as np

from reader_edge_export.sources.adapters.adapter import MERGE, Adapter, Factors, ReadFactors
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.stored_tensors import StoredTensor, file_tensors
from reader_edge_export.sources.text_part import own_name
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.untrusted.plain_file import check_plain_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_REMEDY = "give the folder of an adapter as PEFT saves it"
_DOWN, _UP, _LENGTHS = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
_KEY = re.compile(rf"base_model\.model\.([\w.]{{1,400}})\.({re.escape(_DOWN)}|{re.escape(_UP)}|{_LENGTHS})", re.ASCII)
_PLAIN_NAME = re.compile(r"[\w.]{1,400}", re.ASCII)
_NUMBERS = ("F16", "BF16", "F32", "F64")
_MOST = 1e6  # of a rank and of alpha
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
    """tensors: by the module that they change, and by what they are of it."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, StoredTensor]]

    @classmethod
    def open(cls, folder: Path) -> "PeftFolder":
        """Raises ExportError, or UnsupportedArchitectureError for what is not read."""
        check_plain_file(folder / CONFIG_NAME, ExportError, _REMEDY)
        config = read_json(folder / CONFIG_NAME)
        _check_config(folder, config)
        path = folder / WEIGHTS_NAME
        if (folder / _PICKLE).exists() and not path.exists():
            raise ExportError(
                f"'{folder}' holds its weights as {_PICKLE}, a pickle that may run code: save the adapter as "
                "safetensors (PeftModel.save_pretrained(...))."
            )
        check_plain_file(path, ExportError, _REMEDY)
        parts = {_DOWN, _UP, *([_LENGTHS] if config.get("use_dora") else [])}
        tensors = _by_module(folder, file_tensors(path), parts)
        base = config.get("base_model_name_or_path")
        return cls(folder, base if isinstance(base, str) else "", config, tensors)

    @property
    def files(self) -> list[Path]:
        return [self.path / CONFIG_NAME, self.path / WEIGHTS_NAME]

    def factors(self, model: "PreTrainedModel") -> Mapping[str, ReadFactors]:
        from reader_edge_export.sources.adapters.merged_weights import MergeableMatrices
        from reader_edge_export.sources.folder.parameter_names import ParameterNames

        names, matrices = ParameterNames(model), MergeableMatrices(self, model)
        found: dict[str, ReadFactors] = {}
        for module, parts in self.tensors.items():
            name = names.name_of(own_name(f"{module}.weight"))
            wanted = matrices.shape_of(module, name)
            matrices.check(module, wanted, parts[_UP].shape, parts[_DOWN].shape)
            if _LENGTHS in parts and parts[_LENGTHS].shape != wanted[:1]:
                raise ExportError(
                    f"'{self.path}' has lengths of the shape {parts[_LENGTHS].shape} for the {wanted[0]} outputs of "
                    f"{module:.100}: fetch the adapter again."
                )
            if name is None or name in found:
                raise ExportError(f"'{self.path}' changes {name} by two names: fetch the adapter again.")
            found[name] = partial(self._read, module, self._scale(module, parts[_DOWN].shape[0]))
        return found

    def _scale(self, module: str, rank: int) -> float:
        """By what the product of a module's factors is multiplied. Raises ExportError."""
        given = _of_module(self.config.get("rank_pattern"), module, self.config.get("r", 8))
        if given != rank:
            raise ExportError(
                f"'{self.path}' holds {module:.100} in rank {rank}, where its {CONFIG_NAME} says {given:g}: fetch the "
                "adapter again."
            )
        alpha = _of_module(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8))
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _read(self, module: str, scale: float) -> Factors:
        values: dict[str, Float32Array] = {
            part: tensor.read().float().numpy() for part, tensor in self.tensors[module].items()
        }
        return Factors(values[_UP] * np.float32(scale), values[_DOWN], values.get(_LENGTHS))


def _by_module(folder: Path, tensors: Iterable[StoredTensor], wanted: set[str]) -> dict[str, dict[str, StoredTensor]]:
    """Raises ExportError for tensors that are no part of a LoRA, and for modules whose parts are not those wanted."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        name = tensor.name
        if (key := _KEY.fullmatch(name)) is None:
            raise ExportError(
                f"'{folder}' holds {name!r:.100}, which is no factor of a linear layer, and nothing else is read of "
                f"adapters: {MERGE}."
            )
        if tensor.dtype not in _NUMBERS:
            raise ExportError(
                f"'{folder}' holds {name!r:.100} as {tensor.dtype}, which is no number of an adapter: fetch it again."
            )
        found.setdefault(key[1], {})[key[2]] = tensor
    for module, parts in found.items():
        if unlike := sorted(parts.keys() ^ wanted):
            verb = "has a" if unlike[0] in parts else "lacks the"
            raise ExportError(
                f"'{folder}' {verb} {unlike[0]} of {module:.100}, unlike what its {CONFIG_NAME} says: fetch the "
                "adapter again."
            )
    if not found:
        raise ExportError(f"'{folder}' holds no factors: fetch the adapter again.")
    return found


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UnsupportedArchitectureError for a value that is not read, or cannot be."""
    for key, value in {"peft_type": None, **config}.items():
        if key in _SIZES:
            is_read = _is_size(value)
        elif key in _PATTERNS:
            is_read = value is None or _is_pattern(value)
        else:
            is_read = key in _IDLE or value in _CHOICES.get(key, _OFF)
        if not is_read:
            raise UnsupportedArchitectureError(
                f"'{folder / CONFIG_NAME}' sets {reprlib.repr(key)} to {reprlib.repr(value)}, which is not read here: "
                f"{MERGE}."
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MOST


def _is_pattern(value: object) -> bool:
    """PEFT takes any regular expression for a name, and one can be made to run for years."""
    if not isinstance(value, dict):
        return False
    return all(_PLAIN_NAME.fullmatch(name) and _is_size(size) for name, size in value.items())


def _of_module(pattern: Mapping[str, float] | None, module: str, usual: float) -> float:
    """What a pattern says of a module: by its name, or by what that ends in; of several, the first."""
    found = (value for name, value in (pattern or {}).items() if module == name or module.endswith(f".{name}"))
    return next(found, usual)
