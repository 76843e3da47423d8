"""Attention that is passed to a speculator's network: in checks and calibration over one text, pass by pass."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

# (attention module, query (B, Hq, N, D), key (B, H, N, D), value (B, H, N, D)) -> (B, N, Hq, D); the module tells
# `layer_idx` and `scaling`. What nodes see, and keys of earlier ones, are the callable's own affair.
Attend = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

LentRows = Mapping[int, tuple[torch.Tensor, torch.Tensor]]  # of each layer that lends, keys and values (1, H, M, D)

ATTENTION_NAME = "reader_edge_handed"


class TextAttention(Protocol):
    """An `Attend` for passes over one text, each behind all earlier ones."""

    def begin_pass(self, num_context: int, seen: torch.Tensor) -> None:
        """num_context: nodes that have states of the target. seen: bool (N, M), which of all nodes so far, those of the
        pass included, each sees; of blocks it follows from the layers.
        """
        ...

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, /) -> torch.Tensor: ...


class DenseAttention:
    """A `TextAttention` with memory. seen: see `TextAttention.begin_pass`."""

    def __init__(self) -> None:
        self.seen = torch.ones(0, 0, dtype=torch.bool)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin_pass(self, num_context: int, seen: torch.Tensor) -> None:
        self.seen = seen

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if module.layer_idx in self._kept:
            pairs = zip(self._kept[module.layer_idx], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        self._kept[module.layer_idx] = key, value
        return attended(module, query, key, value, self.seen)


class LentAttention:
    """A `TextAttention` over keys and values of the target. seen: of the first M rows the first ones that a node sees,
    bool (N, M).
    """

    def __init__(self, rows: LentRows) -> None:
        self.seen = torch.ones(0, 0, dtype=torch.bool)
        self._rows = rows

    def begin_pass(self, num_context: int, seen: torch.Tensor) -> None:
        self.seen = seen

    def __call__(self, module: Any, query: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        seen, num_rows = self.seen, self.seen.shape[1]
        key, value = (rows[:, :, :num_rows] for rows in self._rows[module.lent_layer])
        if module.sliding_window is not None:
            seen = seen & (torch.arange(num_rows) >= seen.sum(-1, keepdim=True) - module.sliding_window)
        return attended(module, query, key, value, seen)


class DenseBlockAttention:
    """A `TextAttention` with memory for `BlockModule`: rows of the context are kept, those of blocks are not.

    num_context: C, how many of a pass's rows are context; set before each pass.
    """

    def __init__(self, num_context: int = 0) -> None:
        self.num_context = num_context
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin_pass(self, num_context: int, seen: torch.Tensor) -> None:
        self.num_context = num_context

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        num_queries = query.shape[2]
        if module.layer_idx in self._kept:
            pairs = zip(self._kept[module.layer_idx], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        context = key.shape[2] - num_queries + self.num_context
        self._kept[module.layer_idx] = key[:, :, :context], value[:, :, :context]
        seen = seen_rows(key.shape[2], num_queries, module.is_block_causal, module.window)
        return attended(module, query, key, value, seen)


def seen_rows(num_rows: int, num_queries: int, is_causal: bool, window: int) -> torch.Tensor:
    """bool (num_queries, num_rows): which of all rows so far, in the order of their positions, the last ones see.

    window: 0 for none. A row that is not causal sees as far ahead as back.
    """
    ahead = torch.arange(num_rows)[None] - torch.arange(num_rows - num_queries, num_rows)[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool) if not is_causal else ahead <= 0
    return seen & (ahead.abs() < window) if window else seen


def attended(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    """What queries find of the rows that they see, bool (N, M); shapes: see `Attend`."""
    group = query.shape[1] // key.shape[1]
    key, value = (rows.repeat_interleave(group, dim=1) for rows in (key, value))
    scores = query @ key.transpose(2, 3) * module.scaling
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    heads: torch.Tensor = weights @ value
    return heads.transpose(1, 2)


def _handed(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: object, *, attend: Attend, **__: object
) -> tuple[torch.Tensor, None]:
    return attend(module, query, key, value), None


AttentionInterface.register(ATTENTION_NAME, _handed)
