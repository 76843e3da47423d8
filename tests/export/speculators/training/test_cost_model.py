"""What a speculator would take is measured first: where it cannot pay, nothing is trained."""

from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_export.speculators.training import cost_model, train_speculator
from reader_edge_export.speculators.training.cost_model import SpeculatorCost
from reader_edge_export.speculators.training.train_speculator import (
    TRAINED_FORMATS,
    SpeculatorTraining,
    TrainingOptions,
)
from reader_edge_runtime.drafting.speculators.cost_model import WIDTHS, StepTimes
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import ExportError
from tests.export.speculators.training.speculator_trainings import training_of
from tests.fake_speculator import FakeSpeculator
from tests.fake_target import FakeTarget, make_manifest

pytestmark = pytest.mark.usefixtures("few")

DEAR = SpeculatorCost(5e-3, 1e-2)


@pytest.mark.parametrize("form", TRAINED_FORMATS)
def test_a_step_is_timed_beside_a_pass_and_where_it_cannot_pay_nothing_is_trained(
    form: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(force: bool) -> SpeculatorTraining:
        return training_of(form, package, tmp_path / "new", TrainingOptions(force=force))

    cost = training(force=True).cost()
    assert cost.asking_s > 0
    assert cost.pass_s > 0
    monkeypatch.setattr(train_speculator, "measure_cost", lambda *given: DEAR)
    assert not training(force=True).cost().pays_off
    with pytest.raises(ExportError, match=r"takes 0\.50 of a pass .* adds 1\.00 tokens .* --force\.$"):
        training(force=False).cost()
    (tmp_path / "new.training").mkdir()  # one that has begun is gone on with
    assert not training(force=False).cost().pays_off


@pytest.mark.parametrize("pass_s", [7.99e-3, 8.01e-3])
def test_training_goes_on_where_an_engine_would_ask_and_nowhere_else(
    pass_s: float, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepTimes, "measure", lambda speculator: StepTimes([2e-4] * len(WIDTHS)))
    monkeypatch.setattr(cost_model, "timed_in_turn", lambda *given: ([2e-4] * 2, pass_s))
    manifest = replace(make_manifest(6), state_ids=(0,))
    source = SpeculatorSource(FakeSpeculator(FakeTarget(manifest, 3, 4.0), manifest), (0,), 6, 1)
    training = training_of("eagle3", package, tmp_path / "new", TrainingOptions())
    if source.pays_off(pass_s):
        assert training.cost().pays_off
        return
    with pytest.raises(
        ExportError, match=r"takes 0\.13 of a pass .* adds 0\.25 tokens to a pass; .* usually add 0\.25"
    ):
        training.cost()
