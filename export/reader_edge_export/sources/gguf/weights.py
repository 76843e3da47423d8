"""The tensors of a GGUF file as a module of transformers: converters' changes undone, every tensor in its place.

Shapes are compared on a module without memory first, so that no size in a header is allocated that the file does not
fill. A tensor is dequantised when it is asked for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.blocks.file_blocks import blocks_of
from reader_edge_export.sources.blank_model import check_largest, skeleton_of
from reader_edge_export.sources.gguf.config import architecture_of
from reader_edge_export.sources.gguf.gguf_file import Float32Array, GgufFile, Tensor
from reader_edge_export.sources.gguf.rope import FREQUENCY_FACTORS, ROPE_TENSORS, factors_of
from reader_edge_export.sources.gguf.value_heads import value_columns, value_rows
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.processor import num_usable_cores

_PAIRED = (
    "llama",
    "mistral3",
    "granite",
    "smollm3",
)  # rotate neighbouring values of a head, transformers its two halves
_SHIFTED = ("gemma", "gemma2", "gemma3", "qwen35")  # store what a norm multiplies by, transformers what it adds to one
_QKV = ("attn_q", "attn_k", "attn_v")


def open_weights(file: GgufFile, config: Mapping[str, Any]) -> SourceModel:
    """The model in fp32 with plain attention, its weights left in the file. config: of `config_of`.

    Raises GgufError where tensors are missing, left over or of another shape, and where memory is short.
    """
    skeleton = skeleton_of(config, str(file.path), GgufError)
    placement = Placement(file, skeleton)
    placement.check()
    check_largest(skeleton, str(file.path), GgufError)
    _divide_frequencies(file, skeleton)
    return SourceModel(skeleton, GgufWeights(file, placement))


class GgufWeights(Weights):
    """Tensors that were checked to fill each parameter once."""

    def __init__(self, file: GgufFile, placement: "Placement") -> None:
        self._file = file
        self._placement = placement
        self._rows = placement.rows_of_parameters()

    def read(self, name: str) -> Float32Array:
        tensor, start, stop = self._rows[name]
        if len(tensor.shape) == 1:  # a single row: that of biases of fused queries, keys and values is cut
            return self._placement.undone(name, self._file.values(tensor.name)[start:stop].copy())
        values = np.empty((stop - start, *tensor.shape[1:]), np.float32)
        self._file.read_into(values, tensor, start)
        return self._placement.undone(name, values)

    def block_type(self, name: str) -> BlockType | None:
        return None if self._placement.column_order(name) is not None else BLOCK_TYPES.get(self.stored_type(name))

    def stored_type(self, name: str) -> str:
        """GGUF's name of the type that a parameter has in the file."""
        return self._rows[name][0].kind.name

    def blocks(self, name: str) -> Blocks:
        tensor, start, stop = self._rows[name]
        block_type = BLOCK_TYPES[tensor.kind.name]
        with ThreadPoolExecutor(num_usable_cores()) as pool:  # numpy lets other threads run
            parts = pool.map(partial(blocks_of, block_type), self._file.read_rows(tensor, start, stop))
            blocks = Blocks.joined(list(parts))
        order = self._placement.row_order(name)
        if order is None:
            return blocks
        return Blocks(block_type, {part: array[order] for part, array in blocks.arrays.items()})


class Placement:
    """Which parameters of a module each tensor of a file fills: one, or query, key and value where they are fused."""

    def __init__(self, file: GgufFile, model: PreTrainedModel) -> None:
        self._file = file
        self._architecture = architecture_of(file)
        self._parameters = dict(model.named_parameters())
        self._turned = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
        self._num_heads = {"q_proj": model.config.num_attention_heads}
        self._num_heads["k_proj"] = getattr(model.config, "num_key_value_heads", self._num_heads["q_proj"])
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == self._architecture)
        names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
        self._by_tensor = {
            names.get_name(name.replace(".dt_bias", ".dt_proj.bias"), (".weight", ".bias")): name
            for name in self._parameters
        }
        self._config = model.config

    def check(self) -> None:
        """Raise GgufError unless every parameter gets values of its shape once, and no tensor is left over."""
        filled: Counter[str] = Counter()
        for tensor in self.tensors():
            targets = self.targets(tensor.name)
            if not targets:
                raise self._file.error(
                    f"holds the tensor {tensor.name!r:.80}, for which its architecture has no place",
                    "give the model in Hugging Face format",
                )
            shapes = [self.stored_shape(name) for name in targets]
            wanted = (sum(shape[0] for shape in shapes), *shapes[0][1:])
            if tensor.shape != wanted:
                raise self._file.error(f"has {tensor.name} of the shape {tensor.shape} instead of {wanted}")
            filled.update(targets)
        for tensor_name, name in self._by_tensor.items():
            if filled[name] != 1:
                raise self._file.error(f"holds {filled[name]} tensors instead of one for {tensor_name}")

    def rows_of_parameters(self) -> dict[str, tuple[Tensor, int, int]]:
        """For each parameter the tensor that fills it, and the rows [start, stop) of the tensor that do."""
        rows = {}
        for tensor in self.tensors():
            start = 0
            for name in self.targets(tensor.name):
                stop = start + self.stored_shape(name)[0]
                rows[name] = tensor, start, stop
                start = stop
        return rows

    def tensors(self) -> Iterator[Tensor]:
        """The file's tensors that fill parameters."""
        others = ROPE_TENSORS.get(self._architecture, ())
        return (tensor for name, tensor in self._file.tensors.items() if name not in others)

    def targets(self, tensor_name: str) -> list[str]:
        """The parameters that a tensor fills, one after the other."""
        if tensor_name in self._by_tensor:
            return [self._by_tensor[tensor_name]]
        parts = [tensor_name.replace(".attn_qkv.", f".{part}.") for part in _QKV]
        return [self._by_tensor[part] for part in parts if part in self._by_tensor]

    def stored_shape(self, name: str) -> tuple[int, ...]:
        """Of a parameter in the file."""
        shape = tuple(self._parameters[name].shape)
        if len(shape) == 3:  # a convolution, whose channels are apart: (C, 1, K)
            return shape[0], shape[2]
        return shape[::-1] if name in self._turned else shape

    def undone(self, name: str, values: Float32Array) -> Float32Array:
        """A parameter's values as transformers has them: what llama.cpp's converter did to them is undone."""
        if self._architecture in _SHIFTED and name.endswith("norm.weight") and "linear_attn" not in name:
            values -= 1
        if name.endswith(".A_log"):  # decays are stored as they are used
            if not (values < 0).all():
                raise self._file.error(f"has decays that are not below nought in {name}")
            values = np.log(-values)
        order = self.row_order(name)
        if order is not None:
            values = values[order]
        columns = self.column_order(name)
        if columns is not None:
            values = values[:, columns]
        if name in self._turned:
            return np.ascontiguousarray(values.T)
        return np.ascontiguousarray(values).reshape(self._parameters[name].shape)

    def row_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Which of its rows in the file each row of a parameter is; None where they are in order."""
        if self._architecture == "qwen35":
            return value_rows(self._config, name)
        module = name.split(".")[-2]
        if self._architecture not in _PAIRED or module not in self._num_heads:
            return None
        rows = np.arange(self.stored_shape(name)[0])
        return rows.reshape(self._num_heads[module], -1, 2).swapaxes(1, 2).reshape(-1)

    def column_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """The same of its columns."""
        return value_columns(self._config, name) if self._architecture == "qwen35" else None


def _divide_frequencies(file: GgufFile, model: PreTrainedModel) -> None:
    if FREQUENCY_FACTORS in file.tensors:
        frequencies = model.get_buffer("model.rotary_emb.inv_freq")
        factors = torch.from_numpy(factors_of(file, FREQUENCY_FACTORS))
        if factors.shape != frequencies.shape:
            raise file.error(f"has {len(factors)} factors for {len(frequencies)} frequencies")
        frequencies /= factors
