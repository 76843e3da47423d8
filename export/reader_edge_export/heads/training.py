"""Training of a head: what the target thought next is what it learns, not only what was chosen (distillation)."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.heads.examples import Examples
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.errors import ExportError

Tensor = torch.Tensor
OnLoss = Callable[[int, int, float], None]  # gets steps done, steps in all, and the loss of late

BATCH = 256  # places of a step
RATE, DECAY = 1.5e-3, 0.05
LATER = 0.7  # weight of a second guess, which matters only where the first was right
_WARM_UP = 0.03  # share of the steps in which the rate grows
_EVERY_S = 30.0  # seconds between checkpoints
_SMOOTHING = 0.98

_CHECKPOINT = ArrayFormat(
    magic=b"\x89redght\n",
    error=ExportError,
    name="a head in training",
    owner="plan of training",
    remedy="erase it, training starts over",
    again="the same command resumes",
)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """epochs: times that every example is seen. seconds: after which training ends, its rate fallen all the same.

    fingerprint: 32 bytes of all that a checkpoint must have in common to be gone on from.
    """

    epochs: int
    seconds: float
    fingerprint: bytes

    def num_steps(self, num_examples: int) -> int:
        return self.epochs * -(-num_examples // BATCH)


def train(module: HeadModule, examples: Examples, plan: TrainingPlan, checkpoint: Path, on_loss: OnLoss) -> int:
    """Train a module in place, from the checkpoint where there is one of this plan; returns the steps that were made.

    Raises ExportError.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
    total = plan.num_steps(len(examples))
    step, spent, loss_of_late = _resumed(module, optimizer, plan, checkpoint)
    began = saved = time.monotonic()
    while step < total and spent + time.monotonic() - began < plan.seconds:
        elapsed = spent + time.monotonic() - began
        rate = learning_rate(step / total, max(step / total, elapsed / plan.seconds))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = _loss(module, examples.at(_places(step, len(examples))))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        step += 1
        value = float(loss.detach())
        loss_of_late = value if step == 1 else _SMOOTHING * loss_of_late + (1 - _SMOOTHING) * value
        on_loss(step, total, loss_of_late)
        if time.monotonic() - saved > _EVERY_S:
            saved = time.monotonic()
            _save(module, optimizer, plan, checkpoint, (step, spent + saved - began, loss_of_late))
    return step


def learning_rate(begun: float, done: float) -> float:
    """The rate of learning: it grows quickly, then falls along a cosine."""
    return RATE * min(1.0, begun / _WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def _places(step: int, count: int) -> Tensor:
    """The examples of a step: every epoch sees each once, in an order of its own."""
    steps_an_epoch = -(-count // BATCH)
    generator = torch.Generator().manual_seed(step // steps_an_epoch)
    start = step % steps_an_epoch * BATCH
    return torch.randperm(count, generator=generator)[start : start + BATCH]


def _loss(module: HeadModule, batch: Examples) -> Tensor:
    first, second = module(batch.states.float(), batch.pending, batch.guess)
    return distance(first, batch.top, batch.share) + LATER * distance(second, batch.next_top, batch.next_share)


def distance(logits: Tensor, top: Tensor, share: Tensor) -> Tensor:
    """Mean cross entropy against the target's best successors. logits: (..., ids + 1). top, share: (..., K)."""
    return -(share * torch.log_softmax(logits, -1).gather(-1, top.long())).sum(-1).mean()


def _save(
    module: HeadModule,
    optimizer: torch.optim.Optimizer,
    plan: TrainingPlan,
    path: Path,
    progress: tuple[int, float, float],
) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {"progress": np.array(progress)}
    for name, parameter in module.named_parameters():
        state = optimizer.state[parameter]
        arrays[name] = parameter.detach().numpy()
        arrays |= {f"{name}/{moment}": state[moment].numpy() for moment in ("exp_avg", "exp_avg_sq")}
    _CHECKPOINT.write(path, plan.fingerprint, arrays)


def _resumed(
    module: HeadModule, optimizer: torch.optim.Optimizer, plan: TrainingPlan, path: Path
) -> tuple[int, float, float]:
    """Steps done, seconds spent and the loss of late, all 0 without a checkpoint of this plan."""
    try:
        arrays = _CHECKPOINT.read(path, plan.fingerprint)
        step, spent, loss = arrays["progress"].tolist()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(_tensor(arrays, name))
                moments = {moment: _tensor(arrays, f"{name}/{moment}") for moment in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    except (ExportError, KeyError, RuntimeError, ValueError):
        return 0, 0.0, 0.0
    return int(step), spent, loss


def _tensor(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> Tensor:
    return torch.from_numpy(np.array(arrays[name]))
