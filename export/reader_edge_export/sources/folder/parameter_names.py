"""Matches the tensors of a folder with the parameters of its config's model, by name and shape."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.packing import FLOATS
from reader_edge_runtime.errors import ExportError

# Tables that models compute for themselves, and that older files hold.
_COMPUTED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_HEAD = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
Place = TypeVar("Place")


class ParameterNames:
    """The parameters of a model, by the names that files give them: with the base model's prefix or without."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._prefix = model.base_model_prefix
        self._transposed = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
        self._unread = unread_modules(model)
        self._first_names = {id(parameter): name for name, parameter in model.named_parameters()}

    def find(self, name: str) -> torch.nn.Parameter | None:
        return self._parameters.get(self._full(name))

    def name_of(self, name: str) -> str | None:
        """The name of the parameter that a tensor fills, the first of its names where it has several."""
        parameter = self.find(name)
        return None if parameter is None else self._first_names[id(parameter)]

    def is_transposed(self, name: str) -> bool:
        """Whether a parameter has its inputs first, which no quantised matrix has."""
        return self._full(name) in self._transposed

    def is_unread(self, name: str) -> bool:
        """Whether a tensor is of keys and values that no layer computes: those of another one take their place."""
        return self._full(name).startswith(self._unread)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Parameters that none of the names means: where two are tied, the second does not stand for the first."""
        return sorted(set(self._first_names.values()) - {self._full(name) for name in names})

    def _full(self, name: str) -> str:
        is_full = name in self._parameters or name.startswith(self._unread)
        return name if is_full else f"{self._prefix}.{name}"


def unread_modules(model: PreTrainedModel) -> tuple[str, ...]:
    """Beginnings of the names that files have for what layers with the keys and values of others have no use for."""
    sharing = (name for name, module in model.named_modules() if getattr(module, "is_kv_shared_layer", False))
    return tuple(f"{name}.{part}." for name in sharing for part in ("k_proj", "v_proj", "k_norm", "v_norm"))


def has_own_head(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a folder holds an output embedding with other values than its input embedding.

    Then they are two, as transformers 5 has it, even where config.json ties them.
    """
    embedding = next((tensor for name, tensor in tensors.items() if name.endswith(_EMBEDDINGS)), None)
    head = tensors.get(_HEAD)
    if head is None or embedding is None:
        return False
    return not head.equals(embedding)


def check_shapes(folder: Path, parameters: ParameterNames, tensors: Mapping[str, StoredTensor]) -> None:
    """Raise ExportError where a tensor has another shape than its parameter, before memory is taken for either."""
    for name, tensor in tensors.items():
        target = parameters.find(name)
        if target is not None and tuple(target.shape) != tensor.shape:
            config = config_name(folder)
            raise ExportError(
                f"'{folder}' holds {name!r:.80} of the shape {tensor.shape} instead of {tuple(target.shape)}, which "
                f"its {config} says: correct {config}, or fetch the model again."
            )


def fill(folder: Path, parameters: ParameterNames, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensor of each parameter, by the parameter's name; tensors without a place are left out.

    Raises ExportError for what is no number, and where two with other values are to fill one parameter.
    """
    filling: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if (parameter := parameters.name_of(name)) is None:
            continue
        if tensor.dtype not in (*FLOATS, "F64"):
            raise ExportError(
                f"'{folder}' holds {name!r:.80} as {tensor.dtype}, which is no number of a model: fetch it again."
            )
        put(folder, filling, parameter, tensor)
    return filling


def put(folder: Path, filling: dict[Place, StoredTensor], place: Place, tensor: StoredTensor) -> None:
    """Give a place its tensor. Raises ExportError where it has one with other values."""
    if place in filling and not tensor.equals(filling[place]):
        raise ExportError(
            f"'{folder}' holds {tensor.name!r:.80} and {filling[place].name!r:.80}, which stand for the same weights "
            "and differ: remove the wrong one, or fetch the model again."
        )
    filling[place] = tensor


def config_name(source: Path) -> str:
    """What says which weights a source is to have: a GGUF file does so itself."""
    return "metadata" if source.suffix == ".gguf" else "config.json"


def check_names(folder: Path, missing: Iterable[str], left_over: Iterable[str]) -> None:
    """Raise ExportError where parameters get no tensor of their shape, or tensors have no parameter."""
    lacking, others = sorted(missing), sorted(name for name in left_over if not name.endswith(_COMPUTED))
    if lacking:
        raise ExportError(f"The weights in '{folder}' lack {_first_of(lacking)}: fetch the model again.")
    if others:
        config = config_name(folder)
        raise ExportError(
            f"'{folder}' holds {_first_of(others)}, for which the model of its {config} has no place, so that answers "
            f"would leave it out: correct {config}, or remove what the model does not need from the weights."
        )


def _first_of(names: list[str]) -> str:
    shown = names[0] if names[0].isprintable() else repr(names[0])  # a name may hold new lines
    return f"{shown:.80}" + (f" and {len(names) - 1} others" if len(names) > 1 else "")
