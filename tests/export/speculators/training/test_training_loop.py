"""Networks in training, and checkpoints of them."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from reader_edge_export.speculators.training import training_loop as training
from reader_edge_runtime.errors import ExportError

MOMENTS = "", "/exp_avg", "/exp_avg_sq"


class Copier(torch.nn.Linear):
    """A small network, and the loss of a step: it learns to copy its input."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(8, 8)

    def loss_at(self, step: int) -> torch.Tensor:
        rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        return torch.nn.functional.mse_loss(self(rows), rows)


def test_training_that_broke_off_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_EVERY_S", 0.0)
    lines: list[str] = []

    def trained(path: Path, breaks_at: int | None, owner: bytes = bytes(32)) -> dict[str, torch.Tensor]:
        module = Copier()
        plan = training.TrainingPlan(6, float("inf"), owner, path, lines.append)
        count = itertools.count(1)

        def on_loss(step: int, total: int, loss: float) -> None:
            if next(count) == breaks_at:
                raise KeyboardInterrupt

        training.train(module, module.loss_at, plan, on_loss)
        return module.state_dict()

    whole = trained(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "broken", 4)
    kept = training._CHECKPOINT.read(tmp_path / "broken", bytes(32))
    resumed = trained(tmp_path / "broken", None)
    assert all(torch.allclose(whole[name], resumed[name], atol=1e-6) for name in whole)
    assert lines == []
    last = max(kept)  # all before it are sound
    for spoilt in (
        {"progress": np.full(3, np.nan)},
        {"progress": np.array([0.5, 0.0, 0.0])},
        {"progress": np.array([1e9, 0.0, 0.0])},
        {"progress": np.zeros((3, 1))},
        {last: kept[last] * np.nan},
        {last: kept[last][..., :1]},
        {last: kept[last] - 1},
    ):
        training._CHECKPOINT.write(tmp_path / "broken", bytes(32), kept | spoilt)
        again = trained(tmp_path / "broken", None)  # from the beginning
        assert all(torch.equal(whole[name], again[name]) for name in whole)
        assert lines.pop() == f"'{tmp_path / 'broken'}' holds no sound state of this network: training starts over."
    trained(tmp_path / "broken", None, b"another plan".ljust(32))
    assert lines == [f"'{tmp_path / 'broken'}' belongs to another plan of training: training starts over."]


def test_a_checkpoint_is_as_large_as_its_network_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_MAX_OTHER_BYTES", 2000)
    lines: list[str] = []
    plan = training.TrainingPlan(2, float("inf"), bytes(32), tmp_path / "kept", lines.append)
    module = torch.nn.Linear(40, 50)
    squares = {name: each.detach().numpy() ** 2 for name, each in module.named_parameters()}
    arrays = {f"{name}{part}": each for name, each in squares.items() for part in MOMENTS}
    training._CHECKPOINT.write(plan.checkpoint, bytes(32), arrays | {"progress": np.array([2.0, 7.0, 0.0])})
    assert plan.checkpoint.stat().st_size > 3 * 4 * 40 * 50
    assert training.train(module, lambda step: torch.zeros(()), plan, lambda *done: None)[0] == 2
    assert lines == []
    training._CHECKPOINT.write(plan.checkpoint, bytes(32), arrays | {"more": np.zeros(250)})
    training.train(module, lambda step: module.weight.sum(), plan, lambda *done: None)
    assert lines == [f"'{plan.checkpoint}' is not a file of a network in training: training starts over."]


def test_a_loss_that_is_no_number_ends_training_in_one_sentence(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    plan = training.TrainingPlan(9, float("inf"), bytes(32), tmp_path / "kept")
    with pytest.raises(ExportError, match=r"The loss is no number at step 1: erase '.*kept' or, where"):
        training.train(module, lambda step: module.weight.sum() * float("nan"), plan, lambda *done: None)
