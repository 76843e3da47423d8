"""Training of a network that drafts: what its target thought next is what it learns, not only what was chosen."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.errors import ExportError

Tensor = torch.Tensor
OnLoss = Callable[[int, int, float], None]  # gets steps done, steps in all, and the loss of late

RATE, DECAY = 1.5e-3, 0.05
_WARM_UP = 0.03  # share of the steps in which the rate grows
_EVERY_S = 30.0  # seconds between checkpoints
_SMOOTHING = 0.98
_FEWEST_STEPS = 100  # that a network is made of

_CHECKPOINT = ArrayFormat(
    magic=b"\x89redght\n",
    error=ExportError,
    name="a network in training",
    owner="plan of training",
    remedy="erase it, training starts over",
    again="the same command resumes",
)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """num_steps: to make. seconds: after which training ends, its rate fallen all the same.

    fingerprint: 32 bytes of all that a checkpoint must have in common to be gone on from. checkpoint: its file.
    """

    num_steps: int
    seconds: float
    fingerprint: bytes
    checkpoint: Path


def trained(
    module: torch.nn.Module,
    loss_at: Callable[[int], Tensor],
    plan: TrainingPlan,
    on_progress: Callable[[int, int], None],
) -> list[tuple[int, float]]:
    """Train a module, and return steps and the loss of late at the end of each tenth of those that were made now.

    Raises ExportError also where the time ends before anything is learned.
    """
    curve: dict[int, tuple[int, float]] = {}

    def on_loss(step: int, total: int, loss: float) -> None:
        on_progress(step, total)
        curve[(step - 1) * 10 // total] = step, loss

    num_steps = train(module, loss_at, plan, on_loss)
    if num_steps < min(plan.num_steps, _FEWEST_STEPS):
        raise ExportError(
            f"Stopped at step {num_steps} of {plan.num_steps}, before anything useful was learned: give the same "
            "command more --minutes; what was written and learned is kept."
        )
    return list(curve.values())


def train(module: torch.nn.Module, loss_at: Callable[[int], Tensor], plan: TrainingPlan, on_loss: OnLoss) -> int:
    """Train a module in place, from the checkpoint where there is one of this plan; returns the steps that were made.

    loss_at: of a step, by its number. Raises ExportError.
    """
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=RATE, weight_decay=DECAY)
    total = plan.num_steps
    first, spent, loss_of_late = _resumed(parameters, optimizer, plan)
    step = first
    began = saved = time.monotonic()
    while step < total and spent + time.monotonic() - began < plan.seconds:
        elapsed = spent + time.monotonic() - began
        rate = learning_rate(step / total, max(step / total, elapsed / plan.seconds))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_at(step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        step += 1
        value = float(loss.detach())
        loss_of_late = value if step == 1 else _SMOOTHING * loss_of_late + (1 - _SMOOTHING) * value
        on_loss(step, total, loss_of_late)
        if time.monotonic() - saved > _EVERY_S:
            saved = time.monotonic()
            _save(parameters, optimizer, plan, (step, spent + saved - began, loss_of_late))
    if first < step < total:
        _save(parameters, optimizer, plan, (step, spent + time.monotonic() - began, loss_of_late))
    return step


def learning_rate(begun: float, done: float) -> float:
    """The rate of learning: it grows quickly, then falls along a cosine."""
    return RATE * min(1.0, begun / _WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def distance(logits: Tensor, top: Tensor, share: Tensor) -> Tensor:
    """Mean cross entropy against the target's best successors. logits: (..., ids + 1). top, share: (..., K)."""
    return -(share * torch.log_softmax(logits, -1).gather(-1, top.long())).sum(-1).mean()


def _save(
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    plan: TrainingPlan,
    progress: tuple[int, float, float],
) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {"progress": np.array(progress)}
    for name, parameter in parameters.items():
        state = optimizer.state[parameter]
        arrays[name] = parameter.detach().cpu().numpy()
        arrays |= {f"{name}/{moment}": state[moment].cpu().numpy() for moment in ("exp_avg", "exp_avg_sq")}
    _CHECKPOINT.write(plan.checkpoint, plan.fingerprint, arrays)


def _resumed(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, plan: TrainingPlan
) -> tuple[int, float, float]:
    """Steps done, seconds spent and the loss of late, all 0 without a checkpoint of this plan."""
    try:
        arrays = _CHECKPOINT.read(plan.checkpoint, plan.fingerprint)
        step, spent, loss = arrays["progress"].tolist()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(_tensor(arrays, name))
                moments = {
                    moment: _tensor(arrays, f"{name}/{moment}").to(parameter.device)
                    for moment in ("exp_avg", "exp_avg_sq")
                }
                optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    except (ExportError, KeyError, RuntimeError, ValueError):
        return 0, 0.0, 0.0
    return int(step), spent, loss


def _tensor(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> Tensor:
    return torch.from_numpy(np.array(arrays[name]))
