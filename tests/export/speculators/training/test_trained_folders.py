"""What trainings read and write: recorded answers, folders of speculators, what a speculator costs and brings."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from reader_edge.cli import main
from reader_edge_export.speculators.training import measured_cost, speculator_folder, train_speculator
from reader_edge_export.speculators.training.generated_answers import AnswerSizes, GeneratedAnswers, RecordingConfig
from reader_edge_export.speculators.training.measured_cost import SpeculatorCost
from reader_edge_export.speculators.training.record_answers import held_out_apart, instructions
from reader_edge_export.speculators.training.speculator_folder import write_folder
from reader_edge_export.speculators.training.state_recorder import StateRecorder, StateRequest
from reader_edge_export.speculators.training.train_speculator import (
    TRAINED_FORMATS,
    SpeculatorTraining,
    TrainingOptions,
)
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.drafting.speculators.speculator_cost import WIDTHS, SpeculatorTimes
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.speculators.record_speculators import TRAINED
from tests.export.speculators.speculator_folders import HIDDEN_SIZE, training_of
from tests.export.speculators.speculator_folders import HIDDEN_SIZE as HIDDEN
from tests.fake_speculator import FakeSpeculator
from tests.fake_target import FakeTarget, make_manifest
from tests.tiny_models import VOCAB_SIZE

Arrays = dict[str, Array]
SIZES = AnswerSizes(vocab_size=9, state_size=2)


def _arrays(context: int = 0) -> Arrays:
    """Two answers: of two tokens to a prompt of one more, and of three to one of two more."""
    return {
        "prompt_ids": np.array([8, 0, 1], np.int32),
        "token_ids": np.array([0, 1, 2, 3, 4], np.int32),
        "states": np.zeros((3 + 2 * context, 2), np.float16),
        "top_ids": np.full((3, 4), 8, np.int32),
        "top_logits": np.zeros((3, 4), np.float32),
        "lengths": np.array([[1, 2, 1 + context, 1, 1], [2, 3, 2 + context, 2, 2]], np.int32),
        "num_prompts": np.array([2], np.int32),
    }


def test_what_was_written_is_sound_with_states_of_no_more_tokens_than_a_prompt_has() -> None:
    assert SIZES.fault(_arrays()) is None
    assert SIZES.fault(_arrays(1)) is None
    assert SIZES.fault(_arrays(2)) == "lengths"  # the first prompt has one besides its last


@pytest.mark.parametrize("name", ["prompt_ids", "token_ids", "states", "top_ids", "top_logits", "lengths"])
@pytest.mark.parametrize(
    "spoilt",
    [
        lambda array: None,
        lambda array: array[:-1],
        lambda array: array[:0],
        lambda array: array[..., None],
        lambda array: array.astype(np.float64),
        lambda array: np.array(0, array.dtype),
    ],
    ids=["missing", "short", "empty", "another dimension", "another type", "a number"],
)
def test_the_array_at_fault_is_named(name: str, spoilt: Callable[[Array], Array | None]) -> None:
    arrays = _arrays()
    found = spoilt(arrays.pop(name))
    assert SIZES.fault(arrays if found is None else arrays | {name: found}) in (name, "prompt_ids")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("prompt_ids", np.array([8, 0, 9], np.int32)),
        ("token_ids", np.array([0, 1, 2, 3, -1], np.int32)),
        ("top_ids", np.full((3, 4), 1 << 30, np.int32)),
        ("states", np.zeros((3, 3), np.float16)),
        ("top_logits", np.full((3, 4), np.nan, np.float32)),
        ("top_logits", np.zeros((3, 3), np.float32)),
        ("lengths", np.array([[1, 2, 1, 1, 1], [2, 3, 3, 2, 1]], np.int32)),
        ("lengths", np.array([[1, 3, 1, 1, 1], [2, 2, 2, 2, 2]], np.int32)),
        ("lengths", np.array([[4, 2, 1, 1, 1], [-1, 3, 2, 2, 2]], np.int32)),
        ("num_prompts", np.zeros(0, np.int32)),
        ("num_prompts", np.array([-1], np.int32)),
        ("num_prompts", np.array([1.0])),
    ],
)
def test_numbers_that_no_package_writes_are_found(name: str, array: Array) -> None:
    assert SIZES.fault(_arrays() | {name: array}) in (name, "states")


def test_tokens_without_a_best_successor_are_found() -> None:
    arrays = _arrays() | {"top_ids": np.zeros((3, 0), np.int32), "top_logits": np.zeros((3, 0), np.float32)}
    assert SIZES.fault(arrays) == "top_logits"


SHORT = RecordingConfig(partial(StateRecorder, [0]), 12, is_sampled=False)


def kept(package: Path, folder: Path) -> GeneratedAnswers:
    opened = ModelPackage.open(package)
    sizes = AnswerSizes(VOCAB_SIZE, opened.manifest.hidden_size or 0)
    return GeneratedAnswers(folder, opened.fingerprint(), SHORT, sizes)


@pytest.mark.usefixtures("few")
def test_answers_that_are_written_are_not_written_again_and_a_kill_costs_a_batch(package: Path, tmp_path: Path) -> None:
    written = kept(package, tmp_path)
    prompts = instructions()
    written.write(package, prompts, 100, float("inf"), lambda done, total: None)
    parts = [len(part) for part in written.parts()]
    tokenizer = Tokenizer.open(ModelPackage.open(package))
    begun = {(*answer.prompt_ids, answer.token_ids[0]) for part in written.parts() for answer in part}
    assert begun == {tuple(tokenizer.encode(text)) for text in prompts[: sum(parts)]}
    seen: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        if len(list(written.parts())) > len(parts):
            raise KeyboardInterrupt

    written.write(package, prompts, 100, float("inf"), lambda done, total: seen.append((done, total)))
    assert seen == [(100, 100)]
    assert [len(part) for part in written.parts()] == parts
    with pytest.raises(KeyboardInterrupt):
        written.write(package, prompts, 10_000, float("inf"), interrupt)
    assert [len(part) for part in written.parts()] == [16] * (len(parts) + 1)
    other = GeneratedAnswers(tmp_path, bytes(32), SHORT, AnswerSizes(VOCAB_SIZE, HIDDEN))
    with pytest.raises(ExportError, match="another package"):
        list(other.parts())


@pytest.mark.usefixtures("few")
def test_a_part_that_was_erased_is_written_again_and_none_that_follows(package: Path, tmp_path: Path) -> None:
    written = kept(package, tmp_path)
    prompts = instructions()
    written.write(package, prompts, 400, float("inf"), lambda done, total: None)
    first, *others = sorted(tmp_path.iterdir())
    states = [path.stat().st_mtime_ns for path in others]
    content = first.read_bytes()
    first.unlink()
    seen: list[tuple[int, int]] = []
    written.write(package, prompts, 400, float("inf"), lambda done, total: seen.append((done, total)))
    assert len(others) > 1
    assert first.read_bytes() == content
    assert [path.stat().st_mtime_ns for path in others] == states
    assert seen[-1] == (400, 400)
    assert sorted(tmp_path.iterdir()) == [first, *others]


@pytest.mark.usefixtures("few")
def test_prompts_are_answered_again_by_sampling_where_one_round_lacks(package: Path, tmp_path: Path) -> None:
    written = kept(package, tmp_path)
    prompts = instructions()[:16]
    written.write(package, prompts, 300, float("inf"), lambda done, total: None)
    first, second = list(written.parts())[:2]
    assert [each.prompt_ids.tolist() for each in first] == [each.prompt_ids.tolist() for each in second]
    assert [each.token_ids.tolist() for each in first] != [each.token_ids.tolist() for each in second]
    learned, held_out = held_out_apart([*first, *second])
    assert (len(learned), len(held_out)) == (30, 2)
    assert held_out[0].prompt_ids.tolist() == held_out[1].prompt_ids.tolist()


def test_a_silent_model_is_not_prompted_forever(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = kept(package, tmp_path)
    monkeypatch.setattr(StateRequest, "finish", lambda request: None)
    written.write(package, instructions()[:16], 300, float("inf"), lambda done, total: None)
    assert list(written.parts()) == []


pytestmark = pytest.mark.usefixtures("few")


def test_a_folder_is_the_one_that_the_speculators_package_was_given(package: Path, tmp_path: Path) -> None:
    format_name, manifest = TRAINED_FORMATS["mtp"], ModelPackage.open(package).manifest
    module, state_ids = format_name.untrained(manifest), format_name.state_ids(manifest)
    write_folder(tmp_path / "out", format_name, module, torch.ones(HIDDEN_SIZE), state_ids, manifest)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == TRAINED["mtp"]
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert names == {name for name, _ in module.named_parameters() if name.startswith("mtp_layers.0.")}


def test_folders_are_replaced_whole_or_not(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    format_name, manifest, out = TRAINED_FORMATS["mtp"], ModelPackage.open(package).manifest, tmp_path / "out"
    module, state_ids = format_name.untrained(manifest), format_name.state_ids(manifest)

    def write(is_forced: bool) -> None:
        write_folder(out, format_name, module, torch.ones(HIDDEN_SIZE), state_ids, manifest, is_forced)

    out.mkdir()
    (out / "config.json").write_text("old")
    with pytest.raises(ExportError, match="exists already"):
        write(is_forced=False)
    out.rename(tmp_path / f".out.old-{2**31 - 1}-1")  # as a kill left it
    (tmp_path / f".out.partial-{2**31 - 1}-1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(speculator_folder, "save", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(ExportError, match="is full: free some space, then give the same command"):
            write(is_forced=True)
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "config.json").read_text() == "old"
    write(is_forced=True)
    assert os.listdir(tmp_path) == ["out"]
    with monkeypatch.context() as patch:
        patch.setattr(speculator_folder, "save", lambda *_, **__: bytes((out / "precious.txt").write_text("mine")))
        with pytest.raises(ExportError, match=r"holds more than a speculator \('precious.txt'\)"):
            write(is_forced=True)  # what came while it was made
    assert (out / "precious.txt").read_text() == "mine"
    assert json.loads((out / "config.json").read_text()) == TRAINED["mtp"]


@pytest.mark.parametrize(
    ("format_name", "make", "words"),
    [
        ("mtp", lambda out: out.write_text(""), "is a file: choose another name"),
        ("mtp", lambda out: (out / "letters").mkdir(parents=True), "holds more than a speculator ('letters'): choose"),
    ],
    ids=["a file", "a folder of other things"],
)
def test_only_speculators_are_replaced(
    format_name: str, make: Callable[[Path], None], words: str, package: Path, tmp_path: Path
) -> None:
    make(tmp_path / "out")
    command = ["train-drafter", str(package), "-o", str(tmp_path / "out"), "--format", format_name, "--force"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


DEAR = SpeculatorCost(5e-3, 1e-2)


@pytest.mark.parametrize("format_name", TRAINED_FORMATS)
def test_a_step_is_timed_beside_a_pass_and_where_it_cannot_pay_nothing_is_trained(
    format_name: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(force: bool) -> SpeculatorTraining:
        return training_of(format_name, package, tmp_path / "new", TrainingOptions(force=force))

    cost = training(force=True).cost()
    assert cost.asking_s > 0
    assert cost.pass_s > 0
    monkeypatch.setattr(train_speculator, "measure_cost", lambda *given: DEAR)
    assert not training(force=True).cost().pays_off
    with pytest.raises(ExportError, match=r"takes 0\.50 of a pass .* adds 1\.00 tokens .* --force\.$"):
        training(force=False).cost()
    (tmp_path / "new.training").mkdir()  # a training that has begun is resumed
    assert not training(force=False).cost().pays_off


def test_a_forced_training_says_that_it_will_not_pay(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_speculator, "measure_cost", lambda *given: DEAR)
    monkeypatch.setattr(SpeculatorTraining, "run", _stopped)
    result = CliRunner().invoke(main, ["train-drafter", str(package), "-o", str(tmp_path / "new"), "--force"])
    assert "This will not pay here; training goes on because of --force." in result.stderr


def _stopped(*given: object) -> None:
    raise ExportError("It was stopped.")


@pytest.mark.parametrize("pass_s", [7.99e-3, 8.01e-3])
def test_training_goes_on_where_an_engine_would_ask_and_nowhere_else(
    pass_s: float, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpeculatorTimes, "measure", lambda speculator: SpeculatorTimes([2e-4] * len(WIDTHS)))
    monkeypatch.setattr(measured_cost, "timed_in_turn", lambda *given: ([2e-4] * 2, pass_s))
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
