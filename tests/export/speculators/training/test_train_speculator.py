"""Training of speculators: on a package's own answers with its states, in chains of their own; reported and resumed."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.package.package_folder import training_folder
from reader_edge_export.speculators.training import generated_answers, train_speculator, training_loop
from reader_edge_export.speculators.training.measured_cost import SpeculatorCost
from reader_edge_export.speculators.training.record_answers import instructions
from reader_edge_export.speculators.training.train_speculator import (
    TRAINED_FORMATS,
    SpeculatorReport,
    SpeculatorTraining,
    TrainingOptions,
)
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows, logit_head_rows
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import Exported, TinyModel
from tests.export.speculators.record_speculators import TRAINED
from tests.export.speculators.speculator_folders import training_of
from tests.tiny_models import VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("few")

CHEAP = SpeculatorCost(1e-3, 1e-2)


@pytest.mark.long
@pytest.mark.parametrize("format_name", TRAINED_FORMATS)
def test_a_trained_folder_is_exported_and_drafts(
    format_name: str, package: Path, tiny_model: TinyModel, tmp_path: Path
) -> None:
    phases: list[str] = []
    options = TrainingOptions(300)
    training = SpeculatorTraining(package, tmp_path / "tiny", TRAINED_FORMATS[format_name], options, phases.append)
    report = training.run(["the cat sat"], lambda done, total: None)
    assert phases[-2:] == ["training", "measuring acceptance"]
    losses = [loss for _, loss in report.curve]
    assert losses[-1] < losses[0]
    assert report.depths[0].num_places > 0
    assert {file.name for file in report.out.iterdir()} == {"config.json", "model.safetensors"}
    ran = json.loads((report.out / "config.json").read_text())
    assert ran == TRAINED[format_name] | ({"draft_vocab_size": report.num_ids} if format_name != "mtp" else {})
    export_model(tiny_model("llama"), tmp_path / "out", ExportOptions("int8", check="quick", speculator=report.out))
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.speculator is not None
    assert manifest.speculator.state_ids == training.state_ids
    assert manifest.speculator.draft_vocab_size == report.num_ids
    assert manifest.checks["speculator_agreement"] > 0.9
    (tmp_path / "prompts.txt").write_text("the cat\n")
    command = [
        "verify",
        str(tmp_path / "out"),
        "--prompts",
        str(tmp_path / "prompts.txt"),
        "--minutes",
        "0.1",
        "--json",
    ]
    verified = CliRunner().invoke(main, command)
    assert verified.exit_code == 0, verified.output
    proof = json.loads(verified.stdout)
    assert proof["divergences"] == 0
    assert proof["runs"][0]["nodes_by_source"]["speculator"] > 0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the demo model, which writes texts with a sense, and folders of what it wrote beside it."""
    folder = tmp_path_factory.mktemp("demo")
    export_model(Path("models/demo/checkpoint"), folder / "package", ExportOptions("int8", check="none"))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("format_name", TRAINED_FORMATS)
def test_training_lowers_loss_and_raises_acceptance(
    format_name: str, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_speculator, "_MAX_TOKENS", 24)
    monkeypatch.setattr(train_speculator, "MAX_IDS", 200)

    def trained() -> SpeculatorReport:
        training = training_of(format_name, demo / "package", demo / format_name, TrainingOptions(1500, force=True))
        return training.run([], lambda done, total: None)

    with monkeypatch.context() as patch:
        patch.setattr(train_speculator, "trained", lambda *given: [])
        before = trained()
    after = trained()
    losses = [loss for _, loss in after.curve]
    assert losses[-1] < 0.9 * losses[0]
    assert after.depths[0].num_places == before.depths[0].num_places > 0
    assert after.depths[0].top1 > 1.5 * before.depths[0].top1
    assert after.depths[0].top4 > 1.5 * before.depths[0].top4


@pytest.mark.long
@pytest.mark.parametrize("format_name", TRAINED_FORMATS)
def test_killed_trainings_end_with_the_same_weights(
    format_name: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loop, "_EVERY_S", 0.0)  # every step is kept
    monkeypatch.setattr(train_speculator, "_EPOCHS", 1)
    phases: list[str] = []
    steps: list[int] = []

    def killed(done: int, total: int) -> None:
        steps.append(done)
        if phases[-1] == "training" and done == total // 2:
            raise KeyboardInterrupt

    def run(name: str, on_progress: Callable[[int, int], None]) -> Path:
        options = TrainingOptions(300)
        return (
            SpeculatorTraining(package, tmp_path / name, TRAINED_FORMATS[format_name], options, phases.append)
            .run([], on_progress)
            .out
        )

    whole = run("whole", lambda done, total: None)
    with pytest.raises(KeyboardInterrupt):
        run("killed", killed)
    assert not (tmp_path / "killed").exists()
    killed_at = steps[-1]
    steps.clear()
    resumed = run("killed", lambda done, total: steps.append(done) if phases[-1] == "training" else None)
    assert steps[0] == killed_at
    for name in ("config.json", "model.safetensors"):
        assert (whole / name).read_bytes() == (resumed / name).read_bytes()


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_rows_of_the_embedding_are_the_models(model_type: str, exported: Exported, tiny_model: TinyModel) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model(model_type))
    with torch.no_grad():
        expected = model.get_input_embeddings()(torch.arange(VOCAB_SIZE))
    found = embedding_rows(ModelPackage.open(exported(model_type, "fp32", "exact")))
    assert np.allclose(found, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "precision"), [("llama", "fp32"), ("llama", "int8"), ("granite", "fp32"), ("phi", "fp32")]
)
def test_head_rows_are_the_matrix_alone(
    model_type: str, precision: str, exported: Exported, tiny_model: TinyModel
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model(model_type))
    expected = model.get_output_embeddings().weight.detach().numpy()
    found = logit_head_rows(ModelPackage.open(exported(model_type, precision, "exact")))
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if precision == "fp32" else 0.02)


@pytest.mark.long
def test_with_little_time_a_training_that_has_begun_goes_on_with_what_it_began_with(
    package: Path, tmp_path: Path
) -> None:
    def trained(num_tokens: int, minutes: float) -> SpeculatorReport:
        options = TrainingOptions(num_tokens, minutes, force=True)
        training = training_of("eagle3", package, tmp_path / "tiny.eagle3", options)
        return training.run([], lambda done, total: None)

    first = trained(100, 60.0)
    (first.folder / "checkpoint.bin").touch()
    assert trained(10_000, 60.0).num_tokens < 2 * first.num_tokens


@pytest.mark.long
def test_answers_for_another_format_are_refused_in_one_sentence(package: Path, tmp_path: Path) -> None:
    def train(format_name: str) -> SpeculatorReport:
        training = training_of(format_name, package, tmp_path / "new", TrainingOptions(100))
        return training.run([], lambda done, total: None)

    train("eagle3")
    with pytest.raises(ExportError, match=r"belongs to another package or --format, .*: erase its folder, or name"):
        train("mtp")


@pytest.mark.parametrize(
    ("format_name", "states"), [("mlp", "state 3"), ("eagle3", "states 0, 1, 2"), ("mtp", "state 3")]
)
def test_a_package_without_states_is_refused(format_name: str, states: str, exported: Exported, tmp_path: Path) -> None:
    package = exported("llama", "fp32", "fast")
    with pytest.raises(ExportError, match=rf"does not report the {states}, which .*: export the model again"):
        training_of(format_name, package, tmp_path / "new", TrainingOptions())


def test_the_command_prints_folder_and_acceptance(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_speculator, "measure_cost", lambda *given: CHEAP)
    path = tmp_path / "new.eagle3"
    command = ["train-drafter", str(package), "-o", str(path), "--tokens", "1000", "--format", "eagle3"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == f"{path}\n"
    lines = ran.stderr.splitlines()
    label = f"Training a speculator for {package}"
    assert lines[:2] == [f"{label}: measuring what a speculator would take", CHEAP.sentence()]
    assert re.search(r"token 1 .* by the best four", ran.stderr)
    assert re.search(r"token 4 .* where those before were right", ran.stderr)
    assert f"export SOURCE NEW --speculator {path} (SOURCE: what {package} was exported from)" in ran.stderr
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 2
    assert "exists already" in ran.stderr


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_interrupted_training_loses_nothing(
    has_begun: bool, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(training: SpeculatorTraining, *given: object) -> None:
        if has_begun:
            (tmp_path / "new.eagle3.training").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(train_speculator, "measure_cost", lambda *given: CHEAP)
    monkeypatch.setattr(SpeculatorTraining, "run", interrupted)
    command = ["train-drafter", str(package), "-o", str(tmp_path / "new.eagle3"), "--format", "eagle3"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 130
    kept = "What was written is kept: the same command resumes.\n"
    assert ran.stderr.endswith(f"{kept if has_begun else ''}Interrupted.\n")
    assert (kept in ran.stderr) == has_begun


def test_so_few_tokens_are_never_wanted_that_no_answer_is_held_out(package: Path, tmp_path: Path) -> None:
    report = training_of("mlp", package, tmp_path / "tiny", TrainingOptions(1)).run([], lambda done, total: None)
    assert report.depths[0].num_places > 0
    assert report.folder.is_dir()


def test_a_training_without_time_makes_none(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "train", lambda *given: (1, 7200.0))
    with pytest.raises(ExportError, match=r"Stopped at step 1 of \d+, .* about [\d.]+ more --minutes; .* is kept"):
        training_of("mlp", package, tmp_path / "tiny", TrainingOptions(300, 60.0)).run([], lambda done, total: None)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.long
def test_prompts_of_ones_own_are_not_passed_over_for_answers_that_lie_there(package: Path, tmp_path: Path) -> None:
    training_of("mlp", package, tmp_path / "tiny", TrainingOptions(300)).run([], lambda done, total: None)
    with pytest.raises(ExportError, match=r"was written to other prompts: erase its folder"):
        training_of("mlp", package, tmp_path / "tiny", TrainingOptions(300)).run(["the cat"], lambda done, total: None)


@pytest.mark.parametrize("name", ["top_ids", "lengths"])
def test_answers_that_lack_an_array_are_refused_in_one_sentence(package: Path, tmp_path: Path, name: str) -> None:
    def trained() -> SpeculatorReport:
        options = TrainingOptions(100, force=True)
        return training_of("mlp", package, tmp_path / "tiny", options).run([], lambda done, total: None)

    path = trained().folder / "answers-0000.bin"
    owner = path.read_bytes()[12:44]
    arrays = generated_answers._PART.read(path, owner)
    generated_answers._PART.write(path, owner, {each: array for each, array in arrays.items() if each != name})
    sentence = f"answers-0000.bin' has no sound {name} of answers to learn from: erase it, it is written again."
    with pytest.raises(ExportError, match=re.escape(sentence)):
        trained()
    path.unlink()
    assert trained().out.is_dir()


def test_instructions_are_many_and_differ() -> None:
    texts = instructions()
    assert len(set(texts)) == len(texts) > 2000
    assert not any("{}" in text for text in texts)


@pytest.mark.long
def test_a_terminal_sees_phases_and_shares(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_speculator, "_EPOCHS", 20)  # longer than a terminal takes to show the next frame
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: stream.name == "<stderr>")
    command = ["train-drafter", str(package), "-o", str(tmp_path / "tiny"), "--tokens", "1000", "--force"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert re.search(r"\x1b\[2KAsking a speculator takes [^\x1b]*\n", result.stderr)
    assert re.search(r"having the model answer .*\d+%", result.stderr)
    assert re.search(r": training .*\d+%", result.stderr)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"prompt": "cat " * 5000}, "tokens"),
        ({"prompt": "\ud800 x"}, "is not valid JSON"),
        ({"messages": [{"role": "user", "content": "cat"}]}, "has no chat template"),
    ],
    ids=["a long one", "half a character", "messages"],
)
def test_bad_prompts_are_named_by_line_before_the_work(prompt: dict[str, object], words: str, tmp_path: Path) -> None:
    text = tmp_path / "own.jsonl"
    text.write_text("\n".join(map(json.dumps, ({"prompt": "the cat"}, prompt))))
    command = ["train-drafter", "models/demo/package", "-o", str(tmp_path / "new"), "--text", str(text)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: Line 2 of '{text}'")
    assert words in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["own.jsonl"]


@pytest.mark.parametrize("name", ["file/new", "x" * 250])
def test_a_place_where_no_folder_can_be_is_refused(name: str, package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"\.training' cannot be written .*: name a file in a folder"):
        training_of("mlp", package, tmp_path / name, TrainingOptions()).run([], lambda done, total: None)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_two_trainings_to_one_folder_the_second_is_refused(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny"
    with training_folder(path), pytest.raises(ExportError, match="in use by another training: wait"):
        training_of("mlp", package, path, TrainingOptions(300)).run([], lambda done, total: None)
    assert not list((tmp_path / "tiny.training").iterdir())
