"""What a speculator would take is measured first: where it cannot pay, nothing is trained."""

from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_export.heads.training_options import TrainingOptions
from reader_edge_export.speculators.training import speculator_payback, train_speculator
from reader_edge_export.speculators.training.speculator_payback import SpeculatorPayback
from reader_edge_export.speculators.training.train_speculator import TRAINED_FORMATS, SpeculatorTraining
from reader_edge_runtime.drafting.sources.speculator.speculator_source import SpeculatorSource
from reader_edge_runtime.drafting.sources.speculator.step_times import WIDTHS, StepTimes
from reader_edge_runtime.errors import ExportError
from tests.export.speculators.training.speculator_trainings import training_of
from tests.fake_speculator import FakeSpeculator
from tests.fake_target import FakeTarget, make_manifest

pytestmark = pytest.mark.usefixtures("few")

DEAR = SpeculatorPayback(5e-3, 1e-2)


@pytest.mark.parametrize("form", TRAINED_FORMATS)
def test_a_step_is_timed_beside_a_pass_and_where_it_cannot_pay_nothing_is_trained(
    form: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(force: bool) -> SpeculatorTraining:
        return training_of(form, package, tmp_path / "new", TrainingOptions(force=force))

    payback = training(force=True).payback()
    assert payback.asking_s > 0
    assert payback.pass_s > 0
    monkeypatch.setattr(train_speculator, "measure_payback", lambda *given: DEAR)
    assert not training(force=True).payback().can_pay
    with pytest.raises(ExportError, match=r"takes 0\.50 of a pass .* adds 1\.00 tokens .* --force\.$"):
        training(force=False).payback()
    (tmp_path / "new.training").mkdir()  # one that has begun is gone on with
    assert not training(force=False).payback().can_pay


@pytest.mark.parametrize("pass_s", [7.99e-3, 8.01e-3])
def test_training_goes_on_where_an_engine_would_ask_and_nowhere_else(
    pass_s: float, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepTimes, "measure", lambda speculator: StepTimes([2e-4] * len(WIDTHS)))
    monkeypatch.setattr(speculator_payback, "timed_in_turn", lambda *given: ([2e-4] * 2, pass_s))
    manifest = replace(make_manifest(6), state_ids=(0,))
    source = SpeculatorSource(FakeSpeculator(FakeTarget(manifest, 3, 4.0), manifest), (0,), 6, 1)
    training = training_of("eagle3", package, tmp_path / "new", TrainingOptions())
    if source.can_pay(pass_s):
        assert training.payback().can_pay
        return
    with pytest.raises(
        ExportError, match=r"takes 0\.13 of a pass .* adds 0\.25 tokens to a pass; .* usually add 0\.25"
    ):
        training.payback()
