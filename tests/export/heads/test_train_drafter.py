"""Training of heads: on what a package wrote itself, continued after a break, told where it cannot pay."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge import Engine, GenerationConfig
from reader_edge.cli import main
from reader_edge_export.heads import instructions as bundled
from reader_edge_export.heads import self_written, train_drafter, training
from reader_edge_export.heads.payback import HeadPayback
from reader_edge_export.heads.train_drafter import HeadTraining
from reader_edge_export.heads.training_options import TrainingOptions
from reader_edge_export.package.training_folder import training_folder
from reader_edge_runtime import DraftSources
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage


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
def test_a_training_that_its_time_ends_is_no_head_and_says_so(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "train", lambda *given: (1, 7200.0))
    head = HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(300, 60.0), lambda stage: None)
    with pytest.raises(ExportError, match=r"Stopped at step 1 of \d+, .* about [\d.]+ more --minutes; .* is kept"):
        head.run([], lambda done, total: None)
    assert not (tmp_path / "tiny.head").exists()


@pytest.mark.usefixtures("few")
def test_prompts_of_ones_own_are_not_passed_over_for_answers_that_lie_there(package: Path, tmp_path: Path) -> None:
    def head() -> HeadTraining:
        return HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(300), lambda stage: None)

    head().run([], lambda done, total: None)
    with pytest.raises(ExportError, match=r"was written to other prompts: erase its folder"):
        head().run(["the cat sat"], lambda done, total: None)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["top_ids", "lengths"])
def test_answers_that_lack_an_array_are_refused_in_one_sentence(package: Path, tmp_path: Path, name: str) -> None:
    def trained() -> HeadTraining:
        return HeadTraining(package, tmp_path / "tiny.head", TrainingOptions(100), lambda stage: None)

    trained().run([], lambda done, total: None)
    (tmp_path / "tiny.head").unlink()
    path, owner = tmp_path / "tiny.head.training" / "answers-0000.bin", ModelPackage.open(package).fingerprint()
    arrays = self_written._PART.read(path, owner)
    self_written._PART.write(path, owner, {each: array for each, array in arrays.items() if each != name})
    told = f"answers-0000.bin' has no sound {name} of answers to learn from: erase it, it is written again."
    with pytest.raises(ExportError, match=re.escape(told)):
        trained().run([], lambda done, total: None)
    assert not (tmp_path / "tiny.head").exists()
    path.unlink()
    assert trained().run([], lambda done, total: None).out.is_file()


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
    spoilt = tmp_path / "new.head.training" / "checkpoint.bin"
    spoilt.parent.mkdir()
    spoilt.touch()
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert told.stdout == f"{path}\n"
    label = f"Training a head for {package}"
    lines = told.stderr.splitlines()
    assert lines[0] == f"{label}: measuring what a head would take"
    assert lines[1].startswith("A step of the head takes")
    stages = ["having the model answer", "finding the rows of the logit head", "training", "measuring acceptance"]
    assert lines.pop(5) == f"'{spoilt}' is not a file of a network in training: training starts over."
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
    assert told.exit_code == 2
    assert "exists already" in told.stderr
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"prompt": "cat " * 5000}, "tokens"),
        ({"prompt": "\ud800 x"}, "surrogate"),
        ({"messages": [{"role": "user", "content": "cat"}]}, "has no chat template"),
    ],
    ids=["a long one", "half a character", "messages"],
)
def test_a_prompt_that_cannot_be_asked_is_told_by_its_line_before_the_work(
    prompt: dict[str, object], words: str, tmp_path: Path
) -> None:
    text = tmp_path / "own.jsonl"
    text.write_text("\n".join(map(json.dumps, ({"prompt": "the cat"}, prompt))))
    command = ["train-drafter", "models/demo/package", "-o", str(tmp_path / "new.head"), "--text", str(text)]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 1
    assert told.stderr.startswith(f"Error: Line 2 of '{text}': ")
    assert words in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["own.jsonl"]


@pytest.mark.usefixtures("few")
def test_a_file_that_appeared_meanwhile_is_not_replaced_unasked(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.head"

    def appear(stage: str) -> None:
        path.write_bytes(b"mine")

    head = HeadTraining(package, path, TrainingOptions(300), appear)
    with pytest.raises(ExportError, match="exists already"):
        head.run([], lambda done, total: None)
    assert path.read_bytes() == b"mine"
    assert (tmp_path / "tiny.head.training" / "answers-0000.bin").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("name", ["/dev/full", "x" * 246])
def test_a_place_where_no_head_can_be_is_told_before_the_work(name: str, package: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["train-drafter", str(package), "-o", str(tmp_path / name), "--force"])
    assert told.exit_code == 1
    assert re.search(r"cannot be written \(.*\): name a file in a folder", told.stderr)
    assert not list(tmp_path.iterdir())
    assert not Path("/dev/full.training").exists()


def test_of_two_trainings_to_one_file_the_second_is_refused(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.head"
    head = HeadTraining(package, path, TrainingOptions(300), lambda stage: None)
    with training_folder(path), pytest.raises(ExportError, match="in use by another training: wait"):
        head.run([], lambda done, total: None)
    assert not list((tmp_path / "tiny.head.training").iterdir())
