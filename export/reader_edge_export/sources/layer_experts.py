"""The experts of a source's layer: their matrices, and the mixture that they make, read one expert at a time.

transformers computes a mixture by the implementation that a config names. Ours asks for products of rows by the
matrices of their experts, which a trace and a calibration replace. The router, which turns scores into experts and
their weights, is the module's own: a trace puts its TopK into the graph as it stands.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface

from reader_edge_export.sources.matrix import ExpertMatrices
from reader_edge_export.sources.weights import Weights

_NAME = "reader_edge"  # of this implementation

# rows (T, k or 1, K) and the experts (T, k) that they are sent to -> (T, k, J)
ExpertProduct = Callable[[ExpertMatrices, torch.Tensor, torch.Tensor], torch.Tensor]


class LayerExperts:
    """up, down: the matrices before and behind what bends an expert's values. multiply: how rows meet them."""

    def __init__(self, name: str, module: Any, weights: Weights) -> None:
        """name: of the module, one of transformers' experts."""
        self._module = module
        self.up, self.down = (
            _matrices(f"{name}.{part}", getattr(module, part), module.is_transposed, weights)
            for part in ("gate_up_proj", "down_proj")
        )
        self.multiply: ExpertProduct = streamed_product
        module.layer_experts = self
        module.config._experts_implementation = _NAME

    def mix(self, rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """rows (T, E), each sent to experts (T, k) that have these weights (T, k) -> (T, E), added by rank."""
        before = self._product(self.up, rows[:, None], indices, "gate_up_proj_bias")
        bent: torch.Tensor = self._module._apply_gate(before)
        outputs = self._product(self.down, bent, indices, "down_proj_bias")
        return (outputs * weights[..., None]).cumsum(1)[:, -1]

    def _product(self, matrices: ExpertMatrices, rows: torch.Tensor, experts: torch.Tensor, bias: str) -> torch.Tensor:
        product = self.multiply(matrices, rows, experts)
        if not self._module.has_bias:
            return product
        biases: torch.Tensor = getattr(self._module, bias)
        return product + biases[experts]


def expert_modules(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of a model, by their names, whose mixture is the implementation's."""
    return ((name, each) for name, each in model.named_modules() if hasattr(type(each), "_apply_gate"))


def streamed_product(matrices: ExpertMatrices, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """An `ExpertProduct` that has one expert's matrix in memory."""
    flat, chosen = rows.expand(*experts.shape, -1).flatten(end_dim=1), experts.flatten()
    order = chosen.argsort(stable=True)
    numbers, counts = chosen[order].unique_consecutive(return_counts=True)
    parts = flat[order].split(counts.tolist())
    outputs = [_multiply(part, matrices, expert) for part, expert in zip(parts, numbers.tolist(), strict=True)]
    return torch.cat(outputs)[order.argsort()].reshape(*experts.shape, -1)


class _Product(torch.autograd.Function):
    """rows (R, K) by an expert's matrix, which gradients read again."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrices: ExpertMatrices, expert: int) -> torch.Tensor:
        ctx.matrices, ctx.expert = matrices, expert
        return rows @ torch.from_numpy(matrices.read(expert)).T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient @ torch.from_numpy(ctx.matrices.read(ctx.expert)), None, None


_multiply: Callable[[torch.Tensor, ExpertMatrices, int], torch.Tensor] = _Product.apply


def _matrices(name: str, parameter: torch.Tensor, is_transposed: bool, weights: Weights) -> ExpertMatrices:
    num_experts, first, second = parameter.shape
    sizes = (second, first) if is_transposed else (first, second)
    return ExpertMatrices(name, (num_experts, *sizes), is_transposed, weights)


def _mixture(module: Any, hidden_states: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """transformers' experts interface."""
    experts: LayerExperts = module.layer_experts
    return experts.mix(hidden_states, indices, weights)


ExpertsInterface.register(_NAME, _mixture)
