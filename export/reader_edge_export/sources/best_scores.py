"""The best of a router's scores, chosen as packages choose: the first of those that tie.

PyTorch's topk promises no order of ties, and its products may give two equal rows of a router scores that differ in the
last bits. A source that is compared with something else has to choose alike.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ROUNDING = 1e-6  # of products in fp32, by the largest score


def best(scores: Tensor, k: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    """scores (N, X) -> the best of each row and their places (N, k), the first of those that tie for the last place.

    dim: of the scores, the last.
    """
    assert dim in (-1, scores.ndim - 1)
    last = scores.topk(k).values[..., -1:]
    is_alike = (scores - last).abs() <= _ROUNDING * scores.abs().amax(-1, keepdim=True)
    places = torch.where(is_alike, last, scores).sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return scores.gather(-1, places), places


class SteadyTopk(TorchFunctionMode):
    """While entered, the topk of modules is `best`."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (best if function in (torch.topk, Tensor.topk) else function)(*args, **kwargs or {})
