"""Training of speculators: on a package's own answers with its states, in chains of their own; told and resumed."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from reader_edge import Engine, GenerationConfig
from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.heads import self_written
from reader_edge_export.heads.training_options import TrainingOptions
from reader_edge_export.speculators.training import lessons, train_speculator
from reader_edge_export.speculators.training.embedding_rows import embedding_rows
from reader_edge_export.speculators.training.speculator_payback import SpeculatorPayback
from reader_edge_export.speculators.training.train_speculator import SpeculatorReport, SpeculatorTraining
from reader_edge_export.torch_threads import one_thread_a_call
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.tiny_models import VOCAB_SIZE

CHEAP, DEAR = SpeculatorPayback(1e-4, 1e-2), SpeculatorPayback(5e-3, 1e-2)


@pytest.fixture(scope="session")
def package(exported: Callable[..., Path]) -> Path:
    return exported("llama", "int8", "exact")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers that a test can wait for, and steps too small for two threads."""
    monkeypatch.setattr(self_written, "BATCH", 16)
    monkeypatch.setattr(train_speculator, "_MAX_TOKENS", 12)
    monkeypatch.setattr(train_speculator, "_MAX_IDS", 80)
    monkeypatch.setattr(train_speculator, "_EPOCHS", 3)
    monkeypatch.setattr(lessons, "ROW", 64)
    with one_thread_a_call():
        yield


def test_a_trained_folder_is_exported_with_its_target_and_drafts(
    package: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    stages: list[str] = []
    training = SpeculatorTraining(package, tmp_path / "tiny.eagle3", TrainingOptions(300), stages.append)
    report = training.run(["the cat sat"], lambda done, total: None)
    assert stages[-2:] == ["training", "measuring acceptance"]
    losses = [loss for _, loss in report.curve]
    assert losses[-1] < losses[0]
    assert report.depths[0].num_places > 0
    assert {file.name for file in report.out.iterdir()} == {"config.json", "model.safetensors"}
    told = json.loads((report.out / "config.json").read_text())
    assert told["eagle_aux_hidden_state_layer_ids"] == list(training.state_ids)
    options = ExportOptions("int8", check="quick", speculator=report.out)
    export_model(tiny_model("llama"), tmp_path / "out", options)
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.speculator is not None
    assert manifest.speculator.state_ids == training.state_ids
    assert manifest.checks["speculator_agreement"] > 0.9
    answers = [
        Engine.load(folder).generate("the cat", GenerationConfig(max_tokens=30)).token_ids
        for folder in (package, tmp_path / "out")
    ]
    assert answers[0] == answers[1]


def test_rows_of_the_embedding_are_the_models(exported: Callable[..., Path], tiny_model: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    for model_type in ("llama", "gemma3_text"):
        model = AutoModelForCausalLM.from_pretrained(tiny_model(model_type))
        with torch.no_grad():
            expected = model.get_input_embeddings()(torch.arange(VOCAB_SIZE))
        found = embedding_rows(ModelPackage.open(exported(model_type, "fp32", "exact")))
        assert np.allclose(found, expected.numpy(), atol=1e-6)


def test_with_little_time_a_training_that_has_begun_goes_on_with_what_it_began_with(
    package: Path, tmp_path: Path
) -> None:
    def trained(num_tokens: int, minutes: float) -> SpeculatorReport:
        options = TrainingOptions(num_tokens, minutes)
        training = SpeculatorTraining(package, tmp_path / "tiny.eagle3", options, lambda stage: None)
        return training.run([], lambda done, total: None)

    first = trained(100, 60.0)
    (first.folder / "checkpoint.bin").touch()
    assert trained(10_000, 60.0).num_tokens < 2 * first.num_tokens


def test_a_package_that_reports_no_states_is_refused(exported: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"does not report the states 0, 1, 2, which .*: export the model again"):
        SpeculatorTraining(
            exported("llama", "fp32", "fast"), tmp_path / "no.eagle3", TrainingOptions(), lambda stage: None
        )


def test_a_step_is_timed_beside_a_pass_and_where_it_cannot_pay_nothing_is_trained(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(force: bool) -> SpeculatorTraining:
        return SpeculatorTraining(package, tmp_path / "no.eagle3", TrainingOptions(force=force), lambda stage: None)

    payback = training(force=True).payback()
    assert payback.step_s > 0
    assert payback.pass_s > 0
    monkeypatch.setattr(train_speculator, "measure_payback", lambda *given: DEAR)
    assert not training(force=True).payback().can_pay
    with pytest.raises(ExportError, match=r"takes 0\.50 of a pass .* more than 1\.00 tokens .* --force\.$"):
        training(force=False).payback()
    (tmp_path / "no.eagle3.training").mkdir()  # one that has begun is gone on with
    assert not training(force=False).payback().can_pay


def test_the_command_prints_the_folder_and_what_each_token_of_a_chain_is_worth(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_speculator, "measure_payback", lambda *given: CHEAP)
    path = tmp_path / "new.eagle3"
    command = ["train-drafter", str(package), "-o", str(path), "--self", "1000", "--format", "eagle3"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert told.stdout == f"{path}\n"
    lines = told.stderr.splitlines()
    label = f"Training a speculator for {package}"
    assert lines[:2] == [f"{label}: measuring what a speculator would take", CHEAP.sentence()]
    assert re.search(r"token 1 .* by the best four", told.stderr)
    assert re.search(r"token 4 .* where those before were right", told.stderr)
    assert f"export SOURCE NEW --speculator {path} (SOURCE: what {package} was exported from)" in told.stderr
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 1
    assert "exists already" in told.stderr


def test_layers_for_later_tokens_are_refused_with_where_they_come_from(package: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["train-drafter", str(package), "-o", str(tmp_path / "a"), "--format", "mtp"])
    assert told.exit_code == 1
    assert "trained together with their model" in told.stderr
    assert "--speculator auto" in told.stderr


def test_who_interrupts_a_training_is_told_that_nothing_is_lost(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(training: SpeculatorTraining, *given: object) -> None:
        (tmp_path / "new.eagle3.training").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(train_speculator, "measure_payback", lambda *given: CHEAP)
    monkeypatch.setattr(SpeculatorTraining, "run", interrupted)
    command = ["train-drafter", str(package), "-o", str(tmp_path / "new.eagle3"), "--format", "eagle3"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 130
    assert told.stderr.endswith("What was written is kept: the same command resumes.\nInterrupted.\n")
