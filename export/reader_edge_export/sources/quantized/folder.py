"""A quantised folder: which of its tensors make a matrix together, and the model that they are for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reader_edge_export.sources.blank_model import check_largest, skeleton_of
from reader_edge_export.sources.folder.folder_weights import checked_values
from reader_edge_export.sources.folder.stored_tensors import StoredTensor, stored_tensors
from reader_edge_export.sources.folder.weight_places import COMPUTED, Places, fill, has_own_head, wrong_shape
from reader_edge_export.sources.quantized.awq_gptq import Gptq, awq_packing
from reader_edge_export.sources.quantized.compressed_tensors import CompressedTensors
from reader_edge_export.sources.quantized.formats import AWQ, GPTQ, Quantization
from reader_edge_export.sources.quantized.packing import Packing
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError

Parts = dict[str, StoredTensor]


class QuantizedFolder:
    """The tensors of a folder by the parameters that they fill.

    plain: parameter -> its tensor. packed: parameter -> the parts of its matrix, by their names.
    """

    def __init__(self, folder: Path, quantization: Quantization) -> None:
        self._folder = folder
        self._packing = packing_of(quantization)
        tensors = stored_tensors(folder)
        modules = {name.rpartition(".")[0] for name in tensors if name.rpartition(".")[2] in self._packing.markers}
        if not modules:
            raise ExportError(
                f"'{folder}' holds no quantised weights, as its config says it does: fetch the model again."
            )
        self._packed: dict[str, Parts] = {f"{module}.weight": {} for module in sorted(modules)}
        self._plain: dict[str, StoredTensor] = {}
        for name, tensor in tensors.items():
            module, _, part = name.rpartition(".")
            if module in modules and part in self._packing.parts:
                self._packed[f"{module}.weight"][part] = tensor
            elif part not in self._packing.unused:
                self._plain[name] = tensor

    def open(self, config: Mapping[str, Any]) -> SourceModel:
        """The model whose parameters are widened to fp32 when they are read.

        config: the class's own arguments, as `hf_config` gives them.
        Raises ExportError where tensors are missing, left over or of another shape, and where memory is short.
        """
        if "lm_head.weight" in self._packed or has_own_head(self._plain):
            config = {**config, "tie_word_embeddings": False}
        skeleton = skeleton_of(config, str(self._folder))
        places = Places(skeleton)
        shapes = {name: self._packing.shape_of(_module(name), parts) for name, parts in self._packed.items()}
        self._check(places, shapes)
        check_largest(skeleton, str(self._folder))
        return SourceModel(skeleton, self._weights(places, shapes))

    def _weights(self, places: Places, shapes: Mapping[str, tuple[int, int]]) -> "_WidenedWeights":
        plain = fill(self._folder, places, self._plain)
        packed: dict[str, _PackedMatrix] = {}
        for name, parts in self._packed.items():
            parameter = places.name_of(name)
            assert parameter is not None
            if parameter in plain:
                raise ExportError(
                    f"'{self._folder}' holds {plain[parameter].name!r:.80} quantised and as it is: remove one of them, "
                    "or fetch the model again."
                )
            packed[parameter] = _PackedMatrix(_module(name), shapes[name], parts, places.is_transposed(name))
        return _WidenedWeights(self._folder, self._packing, plain, packed)

    def _check(self, targets: Places, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Raise ExportError unless every parameter gets values of its shape, and no tensor is left over."""
        for name, shape in shapes.items():
            self._check_shape(targets, name, shape[::-1] if targets.is_transposed(name) else shape)
        for name, tensor in self._plain.items():
            if targets.find(name) is None:
                self._check_left_over(name, tensor)
            else:
                self._check_shape(targets, name, tensor.shape)
        if missing := targets.missing((*self._plain, *shapes)):
            raise ExportError(
                f"The weights in '{self._folder}' lack {missing[0]} and {len(missing) - 1} others: "
                "fetch the model again."
            )

    def _check_shape(self, targets: Places, name: str, shape: tuple[int, ...]) -> None:
        target = targets.find(name)
        if target is None:
            raise self._left_over(name)
        if tuple(target.shape) != shape:
            raise wrong_shape(self._folder, name, shape, target)

    def _check_left_over(self, name: str, tensor: StoredTensor) -> None:
        """GPTQ's first tools wrote a bias of noughts for every matrix, which changes nothing."""
        is_bias = name.endswith(".bias") and f"{name.removesuffix('bias')}weight" in self._packed
        if name.endswith(COMPUTED) or (is_bias and not tensor.read().any()):
            return
        raise self._left_over(name)

    def _left_over(self, name: str) -> ExportError:
        return ExportError(
            f"'{self._folder}' holds {name!r:.80}, for which the model of its config has no place: "
            "give the unquantised model."
        )


def _module(name: str) -> str:
    return name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class _PackedMatrix:
    """shape: (J, K). is_transposed: whether the module wants (K, J)."""

    module: str
    shape: tuple[int, int]
    parts: Parts
    is_transposed: bool


class _WidenedWeights(Weights):
    """plain, packed: by the names of parameters."""

    def __init__(
        self,
        folder: Path,
        packing: Packing,
        plain: Mapping[str, StoredTensor],
        packed: Mapping[str, _PackedMatrix],
    ) -> None:
        self._folder = folder
        self._packing = packing
        self._plain = plain
        self._packed = packed

    def read(self, name: str) -> Float32Array:
        if name in self._plain:
            return checked_values(self._folder, name, self._plain[name].read().float())
        stored = self._packed[name]
        values = {part: tensor.read() for part, tensor in stored.parts.items()}
        matrix = torch.empty(stored.shape)
        self._packing.codes_of(stored.module, stored.shape, values).write_into(matrix)
        return checked_values(self._folder, name, matrix.T if stored.is_transposed else matrix)


def packing_of(quantization: Quantization) -> Packing:
    settings: Mapping[str, Any] = quantization.settings
    if quantization.method == AWQ:
        return awq_packing(settings)
    return Gptq(settings) if quantization.method == GPTQ else CompressedTensors(settings)
