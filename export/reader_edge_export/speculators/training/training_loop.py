"""The training loop of a network that drafts, with checkpoints from which it resumes."""

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
OnLoss = Callable[[int, int, float], None]  # gets steps done, steps in all, and the latest loss
OnMessage = Callable[[str], None]  # gets lines that should stay

RATE, DECAY = 1.5e-3, 0.05
_WARM_UP = 0.03  # share of the steps in which the rate grows
_EVERY_S = 30.0  # seconds between checkpoints
_SMOOTHING = 0.98
_FEWEST_STEPS = 100  # that a network is made of
_MAX_OTHER_BYTES = 1 << 21  # of a checkpoint: its table and progress

_CHECKPOINT = ArrayFormat(
    magic=b"\x89redght\n",
    error=ExportError,
    name="a network in training",
    owner="plan of training",
    remedy="training starts over",
    other="training starts over",
    again="the same command resumes",
)


def no_message(line: str) -> None:
    """Drop a line of progress."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """num_steps: to make. seconds: after which training ends, those of earlier runs included; where it has made enough
    steps by then, its rate has fallen all the same.

    fingerprint: 32 bytes of all that a checkpoint must have in common to be gone on from. checkpoint: its file.
    on_message: gets a sentence where there is one that is not gone on from.
    """

    num_steps: int
    seconds: float
    fingerprint: bytes
    checkpoint: Path
    on_message: OnMessage = no_message


def trained(
    module: torch.nn.Module,
    loss_at: Callable[[int], Tensor],
    plan: TrainingPlan,
    on_progress: Callable[[int, int], None],
) -> list[tuple[int, float]]:
    """Train a module, and return steps and the latest loss at the end of each tenth of those that were made now.

    Raises ExportError also where the time ends before anything is learned.
    """
    curve: dict[int, tuple[int, float]] = {}

    def on_loss(step: int, total: int, loss: float) -> None:
        on_progress(step, total)
        curve[(step - 1) * 10 // total] = step, loss

    num_steps, seconds = train(module, loss_at, plan, on_loss)
    fewest = min(plan.num_steps, _FEWEST_STEPS)
    if num_steps < fewest:
        tenths = math.ceil((seconds * fewest / num_steps - plan.seconds) / 6) if num_steps else 0
        more = f"about {max(tenths, 1) / 10} more" if num_steps else "more"
        raise ExportError(
            f"Stopped at step {num_steps} of {plan.num_steps}, before step {fewest}, from which there is a result: "
            f"give the same command {more} --minutes; what was written and learned is kept."
        )
    return list(curve.values())


def train(
    module: torch.nn.Module, loss_at: Callable[[int], Tensor], plan: TrainingPlan, on_loss: OnLoss
) -> tuple[int, float]:
    """Train a module in place, from the checkpoint where there is one of this plan.

    Returns steps made and seconds taken, in all runs. loss_at: of a step, by its number. Raises ExportError.
    """
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=RATE, weight_decay=DECAY)
    total = plan.num_steps
    first, spent, latest_loss = _resumed(parameters, optimizer, plan)
    step = first
    began = saved = time.monotonic()
    while step < total and spent + time.monotonic() - began < plan.seconds:
        elapsed = spent + time.monotonic() - began
        # The first steps know nothing of time: where it ends too soon, more goes on as if there had been no break.
        rate = learning_rate(step / total, max(step / total, elapsed / plan.seconds if step >= _FEWEST_STEPS else 0.0))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_at(step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        step += 1
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ExportError(
                f"The loss is no number at step {step}: erase '{plan.checkpoint}' or, where that does not help, the "
                "answers beside it, and train again."
            )
        latest_loss = value if step == 1 else _SMOOTHING * latest_loss + (1 - _SMOOTHING) * value
        on_loss(step, total, latest_loss)
        if time.monotonic() - saved > _EVERY_S:
            saved = time.monotonic()
            _save(parameters, optimizer, plan, (step, spent + saved - began, latest_loss))
    spent += time.monotonic() - began
    if first < step < total:
        _save(parameters, optimizer, plan, (step, spent, latest_loss))
    return step, spent


def learning_rate(begun: float, done: float) -> float:
    """The rate of learning: it grows quickly, then falls along a cosine."""
    return RATE * min(1.0, begun / _WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


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
    """Steps done, seconds spent and the latest loss, all 0 without a sound checkpoint of this plan."""
    if not plan.checkpoint.exists():
        return 0, 0.0, 0.0
    num_bytes = sum(3 * each.numel() * each.element_size() for each in parameters.values())
    try:
        arrays = _CHECKPOINT.read(plan.checkpoint, plan.fingerprint, num_bytes + _MAX_OTHER_BYTES)
        kept = {
            name: [_tensor(arrays, part, parameter) for part in (name, f"{name}/exp_avg", f"{name}/exp_avg_sq")]
            for name, parameter in parameters.items()
        }
        step, spent, loss = _tensor(arrays, "progress", torch.empty(3, dtype=torch.float64)).tolist()
        if not (step.is_integer() and 0 <= step <= plan.num_steps and spent >= 0):
            raise ValueError("no progress")
        if any((squares < 0).any() for _, _, squares in kept.values()):
            raise ValueError("squares")
    except ExportError as error:
        plan.on_message(str(error))
        return 0, 0.0, 0.0
    except (KeyError, ValueError):
        plan.on_message(f"'{plan.checkpoint}' holds no sound state of this network: {_CHECKPOINT.remedy}.")
        return 0, 0.0, 0.0
    with torch.no_grad():
        for name, parameter in parameters.items():
            value, average, squares = kept[name]
            parameter.copy_(value)
            moments = {"exp_avg": average.to(parameter.device), "exp_avg_sq": squares.to(parameter.device)}
            optimizer.state[parameter] = {"step": torch.tensor(step), **moments}
    return int(step), spent, loss


def _tensor(arrays: Mapping[str, npt.NDArray[Any]], name: str, like: Tensor) -> Tensor:
    """Raises KeyError without one, ValueError for one of another shape or with numbers that are none."""
    array = arrays[name]
    if array.shape != like.shape or not np.isfinite(array).all():
        raise ValueError(name)
    return torch.from_numpy(np.array(array)).to(like.dtype)
