"""Training steps on a speculator's own states, several tokens deep: their attention, loss and acceptance.

A chain is EAGLE-3's training-time test (arXiv 2503.01840, section 3.2). Step 1 is of places that follow true states,
and a causal chain. A later step's node at place i follows the node of the step before at i: it sees step 1 up to i, and
the nodes of its own chain.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.batches import DEPTH, Batches

Tensor = torch.Tensor
# (module, states, ids, places) -> of each token ahead, places and what the logit head reads; see `chain_reads`.
Reads = Callable[[SpeculatorModule, Tensor, Tensor, Tensor], Iterator[tuple[Tensor, Tensor]]]

_LATER = 0.8  # weight of a step, of the one before
_GOING_ON = 0.5  # share of the places from which chains go on: they differ little from those beside them

_MAX_STEPS = 100  # of rows, which are enough for two digits
_FEW = 4
_AT_ONCE = 256  # rows of logits, which may be of a large vocabulary

_SIZES = (512, 1024, 1024)  # of products that tell whether those of bf16 are quicker
_ROUNDS = 5
_CLEARLY = 1.3  # times as quick


class ChainAttention:
    """An `Attend` for networks of one layer, called once a step.

    places: int64 (n,), of the first step's nodes those that later steps go on from.
    """

    def __init__(self, num_places: int, places: Tensor) -> None:
        self._places = places
        behind = torch.arange(num_places, device=places.device)[None, :] > places[:, None]
        self._mask = torch.zeros(behind.shape, device=places.device).masked_fill_(behind, float("-inf"))
        self._rows: list[tuple[Tensor, Tensor]] = []

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query: (B, Hq, n, D). key, value: (B, H, n, D). Returns (B, n, Hq, D)."""
        query, key = query.to(value.dtype), key.to(value.dtype)
        self._rows.append((key, value))
        if len(self._rows) == 1:
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=module.scaling, enable_gqa=True
            )
            return attended.transpose(1, 2)
        (keys, values), *chain = self._rows
        batch, num_heads, num_nodes, size = query.shape
        num_groups = keys.shape[1]
        grouped = (batch, num_groups, num_heads // num_groups, num_nodes)
        queries = (query * module.scaling).reshape(batch, num_groups, -1, size)
        true_scores = (queries @ keys.transpose(-1, -2)).view(*grouped, -1) + self._mask.to(query.dtype)
        queries = queries.view(*grouped, size)
        own_scores = [(queries * own_key.unsqueeze(2)).sum(-1, keepdim=True) for own_key, _ in chain]
        weights = torch.softmax(torch.cat([true_scores, *own_scores], -1), -1).to(value.dtype)
        true_weights, *own_weights = weights.split([true_scores.shape[-1], *(1 for _ in chain)], -1)
        attended = (true_weights.reshape(batch, num_groups, -1, true_weights.shape[-1]) @ values).view(*grouped, size)
        for weight, (_, own_value) in zip(own_weights, chain, strict=True):
            attended = attended + weight * own_value.unsqueeze(2)
        heads: Tensor = attended.reshape(batch, num_heads, num_nodes, size).transpose(1, 2)
        return heads


def chain_reads(
    module: SpeculatorModule, states: Tensor, ids: Tensor, places: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each step of chains, the places whose tokens it reads, and what the logit head reads of them (B, n, E).

    states: (B, N, J * E), as the network joins them. ids: int64 (B, N + DEPTH). places: int64 (n,), those whose chains
    go on behind the first step, which is of all N.
    """
    chosen = torch.arange(states.shape[1], device=ids.device)
    attend = ChainAttention(len(chosen), places)
    own = module.joined(states)
    for step in range(DEPTH):
        at = chosen + step
        output = module.step(ids[:, at], at[None], own, attend)
        yield at, output.read
        own = output.next_states
        if step == 0:
            own, chosen = own[:, places], places


class ChainLoss:
    """The loss of each step of training. scale: float32 (J * E,), by which states are divided.

    is_half: products are of bf16. reads: of the network's format.
    """

    def __init__(self, module: SpeculatorModule, batches: Batches, scale: Tensor, is_half: bool, reads: Reads) -> None:
        self._module = module
        self._reads = reads
        self._batches = batches
        self._scale = scale
        self._is_half = is_half

    def __call__(self, step: int) -> Tensor:
        rows, device = self._batches.at(step), self._scale.device
        num_places = rows.states.shape[1]
        order = torch.randperm(num_places, generator=torch.Generator().manual_seed(step))
        places = order[: int(num_places * _GOING_ON)].sort().values.to(device)
        ids, top, share = (each.to(device) for each in (rows.ids, rows.top, rows.share))
        states = rows.states.to(device).float() / self._scale
        loss, weight, weights = torch.zeros((), device=device), 1.0, 0.0
        with torch.autocast(device.type, torch.bfloat16, enabled=self._is_half):
            for at, read in self._reads(self._module, states, ids, places):
                loss = loss + weight * _distance(self._module.lm_head(read), top[:, at], share[:, at])
                weights += weight
                weight *= _LATER
        return loss / weights


def _distance(logits: Tensor, top: Tensor, share: Tensor) -> Tensor:
    """Cross entropy against what the target thought, of a token that is learned. top, share: (B, n, K)."""
    beliefs = torch.log_softmax(logits.float(), -1).gather(-1, top)
    return -(share * beliefs).sum() / share.sum().clamp_min(1)


class DepthAcceptance(NamedTuple):
    """Of the places where a chain's earlier tokens were right, the shares at which the next one was: the best guess
    (top1), or one of the best four (top4).
    """

    num_places: int
    top1: float
    top4: float


def measure_depths(
    module: SpeculatorModule,
    batches: Batches,
    scale: torch.Tensor,
    reads: Reads,
) -> list[DepthAcceptance]:
    """Of the first, the second and so on to the last token of chains.

    batches: held out. scale, reads: see `ChainLoss`.
    """
    hits = torch.zeros(DEPTH, 3)
    for step in range(min(batches.steps_an_epoch, _MAX_STEPS)):
        rows = batches.at(step)
        ids, has_scores = rows.ids.to(scale.device), rows.has_scores.to(scale.device)
        places = torch.arange(rows.states.shape[1], device=scale.device)
        states = rows.states.to(scale.device).float() / scale
        is_going_on = torch.ones(ids.shape[0], len(places), dtype=torch.bool, device=scale.device)
        with torch.no_grad():
            for depth, (at, read) in enumerate(reads(module, states, ids, places)):
                # The last place has nothing behind it.
                is_known = is_going_on & has_scores[:, at] & (at + 1 < ids.shape[1])
                following = ids[:, (at + 1).clamp_max(ids.shape[1] - 1)][is_known]
                is_chosen = _best(module, read[is_known]) == following[:, None]
                hits[depth] += torch.tensor([len(following), is_chosen[:, 0].sum(), is_chosen.any(-1).sum()])
                is_going_on = is_known.masked_scatter(is_known, is_chosen[:, 0])
    return [
        DepthAcceptance(int(count), top1 / max(count, 1), top4 / max(count, 1)) for count, top1, top4 in hits.tolist()
    ]


def _best(module: SpeculatorModule, read: torch.Tensor) -> torch.Tensor:
    """The target's ids (n, _FEW) that a network likes best, of what its logit head reads (n, E)."""
    return module.in_target(torch.cat([module.lm_head(some).topk(_FEW, -1).indices for some in read.split(_AT_ONCE)]))


def is_half_quicker(device: torch.device) -> bool:
    """Whether they take clearly less time than products of float32."""
    return _CLEARLY * _seconds(device, torch.bfloat16) < _seconds(device, torch.float32)


def _seconds(device: torch.device, dtype: torch.dtype) -> float:
    rows, inputs, outputs = _SIZES
    left, right = (
        torch.ones(rows, inputs, dtype=dtype, device=device),
        torch.ones(inputs, outputs, dtype=dtype, device=device),
    )
    taken = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        (left @ right)[0, 0].item()
        taken.append(time.perf_counter() - began)
    return min(taken)
