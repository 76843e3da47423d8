"""Replaces functions of rotary embeddings that some models cannot be traced with."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from reader_edge_export.trace.tracing import current_trace

_FUNCTION = "get_llama_4_attn_scale"  # of the files of transformers that have such queries
_PAIRED = {  # by model type: what turns values with their neighbours in its file of transformers
    **dict.fromkeys(("cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm4"), "apply_rotary_pos_emb"),
    **dict.fromkeys(("deepseek_v3", "glm4_moe_lite"), "apply_rotary_pos_emb_interleave"),
    "deepseek_v2": "apply_rotary_emb",
}


class _Angles(NamedTuple):
    """Cosines and sines (B, N, D), also in place of the complex numbers that DeepSeek-V2's layers hand on."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def to(self, device: object) -> "_Angles":
        return self


@contextmanager
def tabled_query_scales(model: PreTrainedModel, max_context: int) -> Iterator[None]:
    """While entered, a model whose queries grow with their position (Ministral 3) looks the growth up.

    The last bit of a logarithm, which transformers computes, may hang on how many are taken at a time, so that a
    token's answer would hang on the width of its pass. max_context: positions that can be.
    """
    file: Any = sys.modules[type(model).__module__]
    computed = getattr(file, _FUNCTION, None)
    if computed is None:
        yield
        return

    def looked_up(position_ids: torch.Tensor, beta: float, step: int) -> torch.Tensor:
        """Of positions (B, N): (B, 1, N, 1)."""
        num_steps = -(-max_context // step)
        table: torch.Tensor = computed(step * torch.arange(num_steps)[None], beta, step).reshape(num_steps)
        return table[torch.div(position_ids, step, rounding_mode="trunc")][:, None, :, None]

    setattr(file, _FUNCTION, looked_up)
    try:
        yield
    finally:
        setattr(file, _FUNCTION, computed)


@contextmanager
def frequencies_before_switch(model: PreTrainedModel) -> Iterator[None]:
    """While entered, a model that computes its frequencies in every pass (Phi-MoE) has those of its short texts."""
    rotary: Any = getattr(model.base_model, "rotary_emb", None)
    if not isinstance(rotary, PhimoeRotaryEmbedding):
        yield
        return
    rotary.forward = lambda _, position_ids: angles_of(rotary, position_ids)
    try:
        yield
    finally:
        del rotary.forward


@contextmanager
def plain_positions(model: PreTrainedModel, axes: Sequence[int] = ()) -> Iterator[None]:
    """While entered, angles of time, height and width (mRoPE), which are the same in a text, are computed once.

    axes: of each frequency, the one that it turns by, where a graph is of images too.
    """
    mark = "inv_freq" if axes else "mrope_section"
    rotaries: list[Any] = [module for module in model.modules() if hasattr(module, mark)]
    for rotary in rotaries:
        rotary.forward = partial(_angles_by_axis, rotary, axes) if axes else partial(_angles_of_texts, rotary)
    try:
        yield
    finally:
        for rotary in rotaries:
            del rotary.forward


def _angles_of_texts(rotary: Any, _: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return angles_of(rotary, position_ids[0])


def _angles_by_axis(
    rotary: Any, axes: Sequence[int], _: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """By the trace's positions, since models of texts hand on none of rows and columns."""
    by_axis = current_trace.get().inputs["position_ids"]
    positions = by_axis[torch.tensor(axes)]  # one Gather, and the same Mul as of texts, whose bits it has
    return _angles(rotary, positions.permute(1, 2, 0))


def angles_of(rotary: Any, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (B, N, D) of positions (B, N) by a rotary module, whose two halves are alike."""
    return _angles(rotary, position_ids[:, :, None])


def _angles(rotary: Any, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    halves = positions.float() * rotary.inv_freq
    angles = torch.cat((halves, halves), dim=-1)
    return angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling


@contextmanager
def halved_rotary(model: PreTrainedModel) -> Iterator[None]:
    """While entered, a model whose values turn with their neighbours (GLM) keeps queries and keys in two halves.

    They take another order, even values first, which no product of the two sees.
    """
    name = _PAIRED.get(model.config.model_type)
    if name is None:
        yield
        return
    file: Any = sys.modules[type(model).__module__]
    rotary: Any = model.base_model.rotary_emb
    paired = getattr(file, name)
    setattr(file, name, _rotated)
    rotary.forward = lambda _, position_ids: _Angles(*angles_of(rotary, position_ids))
    try:
        yield
    finally:
        setattr(file, name, paired)
        del rotary.forward


def _rotated(query: torch.Tensor, key: torch.Tensor, *angles: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries and keys (B, H, N, D) by angles (B, N, T), as two arguments or one: the first T values of a head."""
    cosines, sines = angles if len(angles) > 1 else angles[0]
    width = cosines.shape[-1]
    halves = [torch.cat((rows[..., :width:2], rows[..., 1:width:2]), dim=-1) for rows in (query, key)]
    turned = apply_rotary_pos_emb(*halves, cosines, sines)
    if width == query.shape[-1]:
        return turned[0], turned[1]
    still = (rows[..., width:] for rows in (query, key))
    return tuple(torch.cat(parts, dim=-1) for parts in zip(turned, still, strict=True))  # type: ignore[return-value]
