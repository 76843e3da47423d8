"""Training of heads: on what a package wrote itself, continued after a break, told where it cannot pay."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from reader_edge import Engine, GenerationConfig
from reader_edge.cli import main
from reader_edge_export.heads import instructions as bundled
from reader_edge_export.heads import self_written, state_recorder, train_drafter, training
from reader_edge_export.heads.examples import examples_of
from reader_edge_export.heads.head_loss import HeadLoss
from reader_edge_export.heads.held_out import held_out_apart
from reader_edge_export.heads.payback import HeadPayback
from reader_edge_export.heads.self_written import Manner
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_export.heads.train_drafter import HeadTraining
from reader_edge_export.heads.training_options import TrainingOptions
from reader_edge_runtime import DraftSources
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.heads.test_heads import HIDDEN, all_ids, untrained
from tests.tiny_models import VOCAB_SIZE

SHORT = Manner(max_tokens=12)


@pytest.fixture(scope="session")
def package(exported: Callable[..., Path]) -> Path:
    return exported("llama", "int8", "exact")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that a test can wait for."""
    monkeypatch.setattr(self_written, "BATCH", 16)
    monkeypatch.setattr(train_drafter, "_MANNER", SHORT)
    monkeypatch.setattr(train_drafter, "_EPOCHS", 2)


@pytest.mark.usefixtures("few")
def test_a_head_learns_from_its_targets_own_answers(package: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    head = HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(300), stages.append)
    report = head.run(["the cat sat"], lambda done, total: None)
    assert "training" in stages
    assert report.num_tokens > 200
    losses = [loss for _, loss in report.curve]
    assert losses[-1] < losses[0]
    answers = [
        Engine.load(package, sources=DraftSources(head=path))
        .generate("the cat", GenerationConfig(max_tokens=40))
        .token_ids
        for path in (None, report.out)
    ]
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("few")
def test_so_few_tokens_are_never_asked_for_that_no_answer_is_held_out(package: Path, tmp_path: Path) -> None:
    head = HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(1), lambda stage: None)
    report = head.run([], lambda done, total: None)
    assert report.acceptance.num_places > 0
    assert report.folder.is_dir()


@pytest.mark.usefixtures("few")
def test_answers_that_are_written_are_not_written_again_and_a_kill_costs_a_batch(package: Path, tmp_path: Path) -> None:
    written = self_written.SelfWritten(tmp_path, ModelPackage.open(package).fingerprint(), SHORT)
    prompts = bundled.instructions()
    written.write(package, prompts, 100, float("inf"), lambda done, total: None)
    parts = [len(part) for part in written.parts()]
    tokenizer = Tokenizer.open(ModelPackage.open(package))
    begun = {(*answer.prompt_ids, answer.token_ids[0]) for part in written.parts() for answer in part}
    assert begun == {tuple(tokenizer.encode(text)) for text in prompts[: sum(parts)]}
    told: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        if len(list(written.parts())) > len(parts):
            raise KeyboardInterrupt

    written.write(package, prompts, 100, float("inf"), lambda done, total: told.append((done, total)))
    assert told == [(100, 100)]
    assert [len(part) for part in written.parts()] == parts
    with pytest.raises(KeyboardInterrupt):
        written.write(package, prompts, 10_000, float("inf"), interrupt)
    assert [len(part) for part in written.parts()] == [16] * (len(parts) + 1)
    other = self_written.SelfWritten(tmp_path, bytes(32), SHORT)
    with pytest.raises(ExportError, match="another package"):
        list(other.parts())


@pytest.mark.usefixtures("few")
def test_prompts_are_asked_again_for_sampled_answers_where_one_round_is_not_enough(
    package: Path, tmp_path: Path
) -> None:
    written = self_written.SelfWritten(tmp_path, ModelPackage.open(package).fingerprint(), SHORT)
    prompts = bundled.instructions()[:16]
    written.write(package, prompts, 300, float("inf"), lambda done, total: None)
    first, second = list(written.parts())[:2]
    assert [each.prompt_ids.tolist() for each in first] == [each.prompt_ids.tolist() for each in second]
    assert [each.token_ids.tolist() for each in first] != [each.token_ids.tolist() for each in second]
    learned, held_out = held_out_apart([*first, *second])
    assert (len(learned), len(held_out)) == (30, 2)
    assert held_out[0].prompt_ids.tolist() == held_out[1].prompt_ids.tolist()


def test_a_model_that_says_nothing_is_not_asked_for_ever(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = self_written.SelfWritten(tmp_path, ModelPackage.open(package).fingerprint(), SHORT)
    monkeypatch.setattr(state_recorder.StateRequest, "finish", lambda request: None)
    written.write(package, bundled.instructions()[:16], 300, float("inf"), lambda done, total: None)
    assert list(written.parts()) == []


def test_training_that_broke_off_ends_with_the_same_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_EVERY_S", 0.0)
    examples = examples_of([answer_of(200)], all_ids(), VOCAB_SIZE)

    def trained(path: Path, breaks_at: int | None) -> dict[str, torch.Tensor]:
        module = untrained()
        loss_at = HeadLoss(module, examples)
        plan = training.TrainingPlan(6 * loss_at.steps_an_epoch, float("inf"), bytes(32), path)
        count = itertools.count(1)

        def on_loss(step: int, total: int, loss: float) -> None:
            if next(count) == breaks_at:
                raise KeyboardInterrupt

        training.train(module, loss_at, plan, on_loss)
        return module.state_dict()

    whole = trained(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "broken", 4)
    resumed = trained(tmp_path / "broken", None)
    assert all(torch.allclose(whole[name], resumed[name], atol=1e-6) for name in whole)


@pytest.mark.usefixtures("few")
def test_a_training_that_its_time_ends_is_no_head_and_says_so(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "train", lambda *given: 1)
    head = HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(300, 60.0), lambda stage: None)
    with pytest.raises(ExportError, match=r"Stopped at step 1 of \d+, .* more --minutes; .* is kept"):
        head.run([], lambda done, total: None)
    assert not (tmp_path / "tiny.head").exists()


@pytest.mark.usefixtures("few")
def test_prompts_of_ones_own_are_not_passed_over_for_answers_that_lie_there(package: Path, tmp_path: Path) -> None:
    def head() -> HeadTraining:
        return HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(300), lambda stage: None)

    head().run([], lambda done, total: None)
    with pytest.raises(ExportError, match=r"was written to other prompts: erase its folder"):
        head().run(["the cat sat"], lambda done, total: None)


def answer_of(count: int) -> RecordedAnswer:
    random = np.random.default_rng(0)
    states = random.standard_normal((count, HIDDEN)).astype(np.float16)
    top_ids = np.argsort(random.random((count, VOCAB_SIZE)))[:, :4].astype(np.int32)
    token_ids = np.concatenate([[1], top_ids[:, 0]]).astype(np.int32)
    top_logits = -np.sort(random.random((count, 4))).astype(np.float32)
    return RecordedAnswer(np.arange(3, dtype=np.int32), token_ids, states, top_ids, top_logits)


def test_examples_are_a_state_the_pending_token_and_what_came_of_it() -> None:
    answer = answer_of(6)
    examples = examples_of([answer], all_ids(), VOCAB_SIZE)
    assert len(examples) == 5
    assert examples.pending.tolist() == answer.token_ids[1:6].tolist()
    assert examples.guess.tolist() == examples.top[:, 0].tolist() == answer.token_ids[2:7].tolist()
    assert examples.next_top[:4, 0].tolist() == answer.token_ids[3:7].tolist()
    assert examples.next_share.sum(1).tolist() == pytest.approx([1, 1, 1, 1, 0])


def test_a_target_on_which_no_head_can_pay_is_told_before_training(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_drafter, "measure_payback", lambda target, sizes: HeadPayback(5e-4, 1e-3))
    sizes = TrainingOptions(), TrainingOptions(force=True)
    refused, forced = (HeadTraining(package, tmp_path / "no.head", each, lambda stage: None) for each in sizes)
    with pytest.raises(ExportError, match=r"0\.50 ms, 0\.500 of a pass .* 1\.00 accepted tokens .* --force\.$"):
        refused.payback()
    assert not forced.payback().can_pay


def test_instructions_are_many_and_differ() -> None:
    texts = bundled.instructions()
    assert len(set(texts)) == len(texts) > 2000
    assert not any("{}" in text for text in texts)


@pytest.mark.usefixtures("few")
def test_the_command_prints_the_heads_file_and_tells_what_it_found(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.head"
    command = ["train-drafter", str(package), "-o", str(path), "--self", "1000", "--force"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert told.stdout == f"{path}\n"
    label = f"Training a head for {package}"
    lines = told.stderr.splitlines()
    assert lines[0] == f"{label}: measuring what a head would take"
    assert lines[1].startswith("A step of the head takes")
    stages = ["having the model answer", "finding the rows of the logit head", "training", "measuring acceptance"]
    assert lines[2:6] == [f"{label}: {stage}" for stage in stages]
    assert re.search(r"next token .* by the best four", told.stderr)
    assert f"To draft with it: reader-edge run {package} --head {path}\n" in told.stderr
    Engine.load(package, sources=DraftSources(head=path))


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_a_terminal_sees_every_stage_and_how_much_of_it_is_done(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_drafter, "_EPOCHS", 100)  # longer than a terminal takes to show the next frame
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: stream.name == "<stderr>")
    told = CliRunner().invoke(
        main, ["train-drafter", str(package), "-o", str(tmp_path / "a.head"), "--self", "1000", "--force"]
    )
    assert told.exit_code == 0, told.output
    assert re.search(r"\x1b\[2KA step of the head takes [^\x1b]*\n", told.stderr)
    assert re.search(r"having the model answer .*\d+%", told.stderr)
    assert re.search(r": training .*\d+%", told.stderr)


def test_a_place_where_nothing_can_be_written_is_told_with_what_to_do(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    head = HeadTraining(package, tmp_path / "file" / "new.head", TrainingOptions(), lambda stage: None)
    with pytest.raises(ExportError, match=r"new\.head\.training' cannot be written .*: name a file in a folder"):
        head.run([], lambda done, total: None)


def test_a_file_that_is_there_is_not_replaced_unasked(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.head"
    path.write_bytes(b"mine")
    told = CliRunner().invoke(main, ["train-drafter", str(package), "-o", str(path)])
    assert told.exit_code == 1
    assert "exists already" in told.stderr
    assert path.read_bytes() == b"mine"
