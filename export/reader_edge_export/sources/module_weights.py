"""Weights that a module has in memory."""

import torch

from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array


class ModuleWeights(Weights):
    """By the names of its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = dict(module.named_parameters())

    def read(self, name: str) -> Float32Array:
        values: Float32Array = self._parameters[name].detach().float().numpy().copy()
        return values
