"""Replaces parts of Gemma 3n whose functions ONNX has not, or that a trace would spell out at length."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextDecoderLayer


class _Versions:
    """Of a state, (A, B, N, E). What a layer adds to some of them is joined to the others, and not written in place."""

    def __init__(self, versions: torch.Tensor) -> None:
        self.joined = versions

    def __getitem__(self, place: int | slice) -> torch.Tensor:
        return self.joined[place].clone()

    def __setitem__(self, place: slice, changed: torch.Tensor) -> None:
        self.joined = torch.cat((self.joined[: place.start], changed))


@contextmanager
def spelt_out_gemma3n(model: PreTrainedModel) -> Iterator[None]:
    """While entered, layers are traced as products and sums.

    A quantile of the normal distribution, which transformers computes in every pass, is a number; versions of a state
    are joined; kinds of layers come in the same order each time.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, Gemma3nTextDecoderLayer)]
    if not layers:
        yield
        return
    file: Any = sys.modules[type(model).__module__]
    with ExitStack() as hooks:
        file.set = lambda kinds: sorted({*kinds})
        hooks.callback(delattr, file, "set")
        for layer in layers:
            share = torch.tensor(layer.mlp.activation_sparsity, dtype=torch.float32)
            quantile = torch.distributions.Normal(0.0, 1.0).icdf(share).item()
            layer.mlp._gaussian_topk = partial(_above, quantile)
            hooks.callback(delattr, layer.mlp, "_gaussian_topk")
            layer.altup.correct = partial(_corrected, layer.altup.correct)
            hooks.callback(delattr, layer.altup, "correct")
            hooks.callback(layer.register_forward_hook(lambda _, inputs, output: output.joined).remove)
        yield


def _corrected(correct: Any, predictions: torch.Tensor, activated: torch.Tensor) -> _Versions:
    return _Versions(correct(predictions, activated))


def _above(quantile: float, x: torch.Tensor) -> torch.Tensor:
    """How far values lie above the mean of their row and so many standard deviations."""
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    deviation = torch.sqrt((centred * centred).mean(-1, keepdim=True))
    return torch.relu(x - (mean + deviation * quantile))
