"""The weights in a folder of Hugging Face format, and the model that they are for."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.sources.blank_model import built_config, check_largest, skeleton_of
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.folder.expert_tensors import MXFP4, ExpertTensors, Mxfp4Tensors, gather_experts
from reader_edge_export.sources.folder.mlx_layout import as_published
from reader_edge_export.sources.folder.parameter_names import (
    ParameterNames,
    check_names,
    check_shapes,
    fill,
    has_own_head,
)
from reader_edge_export.sources.folder.stored_tensors import StoredTensor, stored_tensors
from reader_edge_export.sources.quantized.formats import Quantization
from reader_edge_export.sources.quantized.packed_tensors import PackedTensor, is_empty_bias, packed_as, packed_tensors
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.text_part import text_tensors
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError


class FolderWeights(Weights):
    """tensors, experts: by the names of the parameters that they fill."""

    def __init__(self, folder: Path, tensors: Mapping[str, StoredTensor], experts: Mapping[str, ExpertTensors]) -> None:
        self._folder = folder
        self._tensors = tensors
        self._experts = experts

    def read(self, name: str) -> Float32Array:
        if name in self._experts:
            return np.stack([self.read_expert(name, expert) for expert in range(self._experts[name].num_experts)])
        return _checked_values(self._folder, name, self._tensors[name].read().float())

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        return _checked_values(self._folder, name, self._tensors[name].read_rows(start, stop).float())

    def read_expert(self, name: str, expert: int) -> Float32Array:
        stored = self._experts.get(name)
        values = self._tensors[name].read_part(expert).float() if stored is None else stored.read(expert)
        return _checked_values(self._folder, name, values)

    def stored_type(self, name: str) -> str:
        block_type = self.block_type(name)
        return self._tensors[name].dtype if block_type is None else block_type.name

    def block_type(self, name: str) -> BlockType | None:
        tensor = self._tensors.get(name)
        is_kept = isinstance(self._experts.get(name), Mxfp4Tensors) or (
            isinstance(tensor, PackedTensor) and tensor.is_in_mxfp4
        )
        return MXFP4 if is_kept else None

    def blocks(self, name: str) -> Blocks:
        stored = self._tensors[name]
        assert isinstance(stored, PackedTensor)
        return self._finite(name, stored.blocks())

    def expert_blocks(self, name: str, expert: int) -> Blocks:
        stored = self._experts[name]
        assert isinstance(stored, Mxfp4Tensors)
        return self._finite(name, stored.blocks_of(expert))

    def _finite(self, name: str, blocks: Blocks) -> Blocks:
        if not blocks.is_finite:
            raise _not_finite(self._folder, name)
        return blocks


def open_folder(
    folder: Path, config: Mapping[str, Any], is_part: bool = False, quantization: Quantization | None = None
) -> SourceModel:
    """The model in a folder of Hugging Face format. config: what its config.json holds.

    is_part: whether the folder holds more than the text model, as that of images, and config is that of the text model.
    quantization: what packed matrices; None where they are as they are, but for experts in MXFP4.

    Raises ExportError where its weights do not fit its config or are left over, and where memory is short.
    """
    tensors = text_tensors(config, stored_tensors(folder)) if is_part else stored_tensors(folder)
    if quantization is not None:
        tensors = packed_tensors(folder, tensors, quantization)
    tensors = as_published(config, tensors)
    args = hf_config(config)
    if built_config(args, str(folder)).tie_word_embeddings and has_own_head(tensors):
        args["tie_word_embeddings"] = False
    skeleton = skeleton_of(args, str(folder))
    return SourceModel(skeleton, weights_of(folder, skeleton, tensors))


def weights_of(
    folder: Path, model: PreTrainedModel, tensors: Mapping[str, StoredTensor], lent: Collection[str] = ()
) -> FolderWeights:
    """Of a model without memory, whose parameters these tensors fill, but for those that are lent by another one.

    Raises ExportError where they do not fit it or are left over, and where memory is short.
    """
    parameters = ParameterNames(model)
    stored = {name: packed_as(tensor, parameters.is_transposed(name)) for name, tensor in tensors.items()}
    stored, experts = gather_experts(folder, parameters, stored)
    check_shapes(folder, parameters, stored)
    left_over = [
        name
        for name in stored
        if (parameters.find(name) is None or name in experts)
        and not parameters.is_unread(name)
        and not is_empty_bias(name, stored)
    ]
    check_names(folder, set(parameters.missing((*stored, *experts))) - set(lent), left_over)
    check_largest(model, str(folder))
    return FolderWeights(folder, fill(folder, parameters, stored), experts)


def _checked_values(folder: Path, name: str, values: torch.Tensor) -> Float32Array:
    """A parameter's values as they are; raises ExportError where one is not finite."""
    if values.numel() and not all(extreme.isfinite() for extreme in values.aminmax()):  # each is NaN if any value is
        raise _not_finite(folder, name)
    array: Float32Array = values.contiguous().numpy()
    return array if array.flags.writeable else np.array(array)


def _not_finite(folder: Path, name: str) -> ExportError:
    return ExportError(
        f"The weights in '{folder}' are not all finite numbers, {name} among them: fetch the model again."
    )
