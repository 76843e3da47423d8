"""Questions to the source's module in PyTorch, and the weights that one has in memory."""

import torch
from transformers import PreTrainedModel

from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError


def vocab_size_of(model: PreTrainedModel) -> int:
    """Rows of the logit head."""
    return int(_logit_head(model).shape[0])


def hidden_size_of(model: PreTrainedModel) -> int:
    """Columns of the logit head."""
    return int(_logit_head(model).shape[1])


def _logit_head(model: PreTrainedModel) -> torch.Tensor:
    head = model.get_output_embeddings()
    if head is None:
        raise ExportError(f"The model type {model.config.model_type!r} has no logit head here.")
    weight: torch.Tensor = head.weight
    return weight


def check_finite(computed: torch.Tensor) -> None:
    """Raise ExportError where what a model computes on the way to its logits is not finite, or they are not."""
    if not computed.isfinite().all():
        raise ExportError(
            "What the model computes is too large for 32-bit numbers: its weights are damaged, or not those of its "
            "config; fetch the model again."
        )


class ModuleWeights(Weights):
    """By the names of its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = dict(module.named_parameters())

    def read(self, name: str) -> Float32Array:
        values: Float32Array = self._parameters[name].detach().float().numpy().copy()
        return values
