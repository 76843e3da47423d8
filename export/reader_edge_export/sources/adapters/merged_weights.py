"""Weights of a model with those of an adapter added as they are read: a matrix at a time, or some of its rows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.sources.adapters.adapter import ReadFactors, factors_of
from reader_edge_export.sources.latent_heads import HeadProduct
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.adapters.adapter import Adapter, fingerprint_of
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import AdapterError

_VALUES_AT_ONCE = 1 << 22  # of what is added


def merged(model: SourceModel, adapter: Adapter) -> tuple[SourceModel, int, str]:
    """The model with an adapter in its weights, in how many matrices it is, 0 where it changes no number, and the
    fingerprint of its factors.

    Raises AdapterError where it does not fit, before it is read.
    """
    factors = factors_of(adapter, model.skeleton)
    weights = MergedWeights(model, adapter, factors)
    is_changed = any(not np.array_equal(model.weights.read(name), weights.read(name)) for name in factors)
    with np.errstate(all="ignore"):  # see `_add`; reading raises where a file has changed since it was opened
        fingerprint = fingerprint_of((name, read()) for name, read in sorted(factors.items()))
    return replace(model, weights=weights), len(factors) if is_changed else 0, fingerprint


class MergedWeights(Weights):
    """Matrices that an adapter changes are fp32; all others are what they were."""

    def __init__(self, model: SourceModel, adapter: Adapter, factors: Mapping[str, ReadFactors]) -> None:
        """factors: by the names of parameters that they fit."""
        self._weights = model.weights
        self._adapter = adapter
        self._factors = factors
        modules = model.skeleton.named_modules()
        self._transposed = {f"{name}.weight" for name, module in modules if isinstance(module, Conv1D)}

    def read(self, name: str) -> Float32Array:
        values = self._weights.read(name)
        if name in self._factors:
            self._add(name, values.T if name in self._transposed else values, 0)
        return values

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        if name in self._transposed:
            return self.read(name)[start:stop]
        values = self._weights.read_rows(name, start, stop)
        if name in self._factors:
            self._add(name, values, start)
        return values

    def _add(self, name: str, values: Float32Array, first: int) -> None:
        """Add in place to rows (..., K) of a matrix, outputs first, from its `first` on. Raises AdapterError."""
        with np.errstate(all="ignore"):  # an adapter may hold any numbers, and what comes of them is checked
            factors = self._factors[name]()
            num_rows = max(1, _VALUES_AT_ONCE // values.shape[1])
            for start in range(0, len(values), num_rows):
                rows = values[start : start + num_rows]
                outputs = slice(first + start, first + start + len(rows))
                rows += factors.up[outputs] @ factors.down
                if factors.magnitude is not None:
                    rows *= (factors.magnitude[outputs] / np.linalg.norm(rows, axis=1))[:, None]
        if not np.isfinite(values).all():
            raise AdapterError(
                f"'{self._adapter.path}' leaves numbers in {name} that are not finite: fetch the adapter again."
            )

    def read_expert(self, name: str, expert: int) -> Float32Array:
        return self._weights.read_expert(name, expert)

    def stored_type(self, name: str) -> str:
        stored = self._weights.stored_type(name)
        return f"{stored} with the adapter" if name in self._factors else stored

    def block_type(self, name: str) -> BlockType | None:
        return None if name in self._factors else self._weights.block_type(name)

    def blocks(self, name: str) -> Blocks:
        return self._weights.blocks(name)

    def expert_blocks(self, name: str, expert: int) -> Blocks:
        return self._weights.expert_blocks(name, expert)


class MergeableMatrices:
    """The matrices of a model that an adapter can be merged into, and what is refused of one that changes others."""

    def __init__(self, adapter: Adapter, model: PreTrainedModel) -> None:
        self._adapter = adapter
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        tables = {id(module.weight) for module in ends if module is not None}
        self._tables = {name for name, parameter in self._parameters.items() if id(parameter) in tables}
        self._shapes = {
            f"{name}.weight": tuple(module.weight.shape[:: -1 if isinstance(module, Conv1D) else 1])
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear | Conv1D | HeadProduct) and id(module.weight) not in tables
        }

    def shape_of(self, target: str, name: str | None) -> tuple[int, ...]:
        """(J, K), outputs first, of the parameter that a target of the adapter means. Raises AdapterError."""
        if name in self._shapes:
            return self._shapes[name]
        if ".experts" in target or "_exps" in target:
            raise self._adapter.other(f"changes the experts of a mixture ({target!r:.100})")
        if ".attn_k_b." in target or ".attn_v_b." in target:
            raise self._adapter.other(f"changes what makes keys and values of a latent by head ({target!r:.100})")
        if name in self._tables:
            raise self._adapter.other(f"changes the embeddings or the logit head ({target!r:.100})")
        if name in self._parameters:
            raise self._adapter.other(f"changes {target!r:.100}, which is no matrix of a product")
        raise self._adapter.missing(target)
