"""The tensors of a GGUF file as a module of transformers. A tensor is dequantised when it is read."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.blocks.blocks import Blocks, unpack_blocks
from reader_edge_export.sources.blank_model import check_largest, skeleton_of
from reader_edge_export.sources.gguf.expert_places import is_apart, is_of_experts
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import architecture_of
from reader_edge_export.sources.gguf.placement import Piece, Placement
from reader_edge_export.sources.gguf.rope import FREQUENCY_FACTORS, factors_of
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.machine.processor import num_usable_cores
from reader_edge_runtime.untrusted.gguf_header import PERHAPS_DAMAGED


def open_weights(file: GgufFile, config: Mapping[str, Any]) -> SourceModel:
    """The model in fp32 with plain attention, its weights left in the file. config: of `config_of`.

    Raises GgufError where tensors are missing, left over or of another shape, and where memory is short.
    """
    model = compared_model(file, config)
    check_largest(model.skeleton, str(file.path), GgufError)
    return model


def compared_model(file: GgufFile, config: Mapping[str, Any]) -> SourceModel:
    """The same, without a look at this machine's memory."""
    skeleton = skeleton_of(config, str(file.path), GgufError)
    placement = Placement(file, skeleton)
    placement.check()
    _divide_frequencies(file, skeleton)
    return SourceModel(skeleton, GgufWeights(file, placement))


class GgufWeights(Weights):
    """Tensors that were checked to fill each parameter once."""

    def __init__(self, file: GgufFile, placement: Placement) -> None:
        self._file = file
        self._placement = placement
        self._rows = placement.rows_of_parameters()
        self._slopes = placement.slopes()

    def read(self, name: str) -> Float32Array:
        if name in self._slopes:
            return self._slopes[name]
        pieces = self._rows[name]
        if is_of_experts(name):
            return np.stack([self.read_expert(name, expert) for expert in range(self._placement.num_experts(name))])
        if self._placement.is_by_head(name):
            return self._of_heads(name, 0, sum(each.tensor.shape[0] * size for each, size in self._head_sizes(name)))
        if len(pieces[0].tensor.shape) == 1:  # a single row: that of biases of fused queries, keys and values is cut
            ((tensor, start, stop),) = pieces
            return self._placement.reverted(name, self._file.values(tensor.name)[start:stop].copy())
        values = np.empty((sum(piece.num_rows for piece in pieces), *pieces[0].tensor.shape[1:]), np.float32)
        filled = 0
        for piece in pieces:
            self._file.read_into(values[filled : filled + piece.num_rows], piece.tensor, piece.start)
            filled += piece.num_rows
        return self._placement.reverted(name, values)

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        if self._placement.is_by_head(name):
            return self._of_heads(name, start, stop)
        first, *others = self._rows[name]
        if others or self._placement.is_changed(name):
            return super().read_rows(name, start, stop)
        values = np.empty((stop - start, *first.tensor.shape[1:]), np.float32)
        self._file.read_into(values, first.tensor, first.start + start)
        return values

    def read_expert(self, name: str, expert: int) -> Float32Array:
        parts = []
        for piece in self._expert_rows(name, expert):
            shape = piece.tensor.shape
            parts.append(np.empty(shape if is_apart(piece.tensor.name) else shape[1:], np.float32))
            self._file.read_into(parts[-1], piece.tensor, piece.start)
        return self._placement.reverted_expert(name, np.concatenate(parts))

    def block_type(self, name: str) -> BlockType | None:
        if self._placement.column_order(name) is not None or self._placement.is_by_head(name):
            return None
        return BLOCK_TYPES.get(self.stored_type(name))

    def stored_type(self, name: str) -> str:
        return " and ".join(dict.fromkeys(piece.tensor.kind.name for piece in self._rows[name]))

    def blocks(self, name: str) -> Blocks:
        return read_blocks(self._file, self._rows[name], self._placement.row_order(name))

    def expert_blocks(self, name: str, expert: int) -> Blocks:
        return read_blocks(self._file, self._expert_rows(name, expert), self._placement.expert_order(name))

    def _head_sizes(self, name: str) -> list[tuple[Piece, int]]:
        """The tensors of keys and of values by head, and how many of its rows each head has in the module."""
        keys, values = self._rows[name]
        return [(keys, keys.tensor.shape[2]), (values, values.tensor.shape[1])]

    def _of_heads(self, name: str, start: int, stop: int) -> Float32Array:
        """Rows of a matrix that is stored by head, keys above values in each."""
        (keys, num_keys), (values, num_values) = self._head_sizes(name)
        size = num_keys + num_values
        first, parts = start // size, []
        for head in range(first, -(-stop // size)):
            for piece in (keys, values):
                part = np.empty(piece.tensor.shape[1:], np.float32)
                self._file.read_into(part, piece.tensor, head * len(part))
                parts.append(part.T if piece is keys else part)
        rows: Float32Array = np.concatenate(parts)
        return rows[start - first * size : stop - first * size]

    def _expert_rows(self, name: str, expert: int) -> list[Piece]:
        """Of a parameter's tensors (X, J, ...), the rows of one expert, or those that are one expert's alone."""
        if is_apart(self._rows[name][0].tensor.name):
            return self._rows[name][expert :: self._placement.num_experts(name)]
        tensors = [(piece.tensor, math.prod(piece.tensor.shape[1:-1])) for piece in self._rows[name]]
        return [Piece(tensor, expert * height, (expert + 1) * height) for tensor, height in tensors]


def read_blocks(file: GgufFile, pieces: Sequence[Piece], order: Int64Array | None) -> Blocks:
    """Rows of tensors as they are stored. order: which of them each row is; None where they are in order."""
    block_type = BLOCK_TYPES[pieces[0].tensor.kind.name]
    data = chain.from_iterable(file.read_rows(*piece) for piece in pieces)
    with ThreadPoolExecutor(num_usable_cores()) as pool:  # numpy lets other threads run
        blocks = Blocks.joined(list(pool.map(partial(unpack_blocks, block_type), data)))
    if not blocks.is_finite:
        raise file.error(f"holds values in {pieces[0].tensor.name!r:.80} that are not finite", PERHAPS_DAMAGED)
    if order is None:
        return blocks
    return Blocks(blocks.block_type, {part: array[order] for part, array in blocks.arrays.items()})


def _divide_frequencies(file: GgufFile, model: PreTrainedModel) -> None:
    if FREQUENCY_FACTORS in file.tensors and architecture_of(file) != "gemma4":
        frequencies = model.get_buffer("model.rotary_emb.inv_freq")
        factors = torch.from_numpy(factors_of(file, FREQUENCY_FACTORS))
        if factors.shape != frequencies.shape:
            raise file.error(f"has {len(factors)} factors for {len(frequencies)} frequencies")
        frequencies /= factors
