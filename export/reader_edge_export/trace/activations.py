"""Replaces an activation whose functions ONNX has not, and which computes its parameters in every pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.activations import XIELUActivation


@contextmanager
def spelt_out_xielu(model: PreTrainedModel) -> Iterator[None]:
    """While entered, xIELU (Apertus; arXiv 2411.13010) is an exponential and products, which GPUs have in all types.

    Values closer to nought than its epsilon, 1e-6, are bent as others are: that moves them by less than it.
    """
    activations: list[Any] = [module for module in model.modules() if isinstance(module, XIELUActivation)]
    for activation in activations:
        slopes = [torch.nn.functional.softplus(each) for each in (activation.alpha_p, activation.alpha_n)]
        activation.forward = partial(_bent, slopes[0], activation.beta + slopes[1], activation.beta)
    try:
        yield
    finally:
        for activation in activations:
            del activation.forward


def _bent(above: torch.Tensor, below: torch.Tensor, slope: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """above, below: what bends values on either side of nought."""
    over, under = torch.relu(x), torch.relu(x * -1.0)
    return above * over * over + below * (torch.exp(under * -1.0) + under + -1.0) + slope * x
