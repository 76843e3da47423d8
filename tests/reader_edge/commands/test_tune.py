"""`tune` and `warm`: a package that is measured, and one with answers of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.commands.tune import tune
from reader_edge.models.store import StoredModel, model_around
from reader_edge.prompts import EvalPrompt, read_prompts
from reader_edge.warmup_answers import INSTRUCTIONS, answer_all, bundled_instructions
from reader_edge_export import pipeline, tuning
from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_export.tuning import TuningReport
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.drafter import PROMPT_TAIL
from reader_edge_runtime.drafting.sources.warmup_answers import WARMUP_ANSWERS_NAME, WarmupAnswers
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, file_entry
from reader_edge_runtime.package.manifest_file import read_manifest, write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.package_copy import PackageCopy

Tuned = list[tuple[Path, Path | None]]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Tuned:
    """Packages that were tuned, and against what; each got a table that is none."""
    calls: Tuned = []

    def tune_package(
        folder: Path, source: Path | None, on_phase: Callable[[str], None], on_share: Callable[[float, float], None]
    ) -> TuningReport:
        on_phase("checking")
        on_share(1, 2)
        calls.append((folder, source))
        manifest = read_manifest(folder)
        (folder / SUCCESSORS_NAME).write_bytes(b"a table")
        figures = {} if source is None else {"tree_rows_equal": 1.0, "mean_kl_nats": 0.5}
        files = {**manifest.files, SUCCESSORS_NAME: file_entry(folder / SUCCESSORS_NAME)}
        manifest = replace(manifest, checks=figures, files=files)
        write_manifest(folder, manifest)
        return TuningReport(manifest, 320, {"checking": 2.0}, "it strays" if figures else None)

    monkeypatch.setattr(tuning, "tune_package", tune_package)
    return calls


@pytest.fixture
def source_folder(tmp_path: Path, demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model to export, which becomes a copy of the demo package without figures."""

    def export_model(
        source: Path,
        out: Path,
        options: ExportOptions,
        on_phase: object,
        name: str | None,
        on_message: object,
        on_share: object,
    ) -> ExportReport:
        assert options.check == "none"  # all is measured afterwards
        PackageCopy(demo_folder, out).change_manifest(checks={})
        return ExportReport(out, 1, options.precision, options.attention, {}, {})

    monkeypatch.setattr(pipeline, "export_model", export_model)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_model_is_exported_and_measured_against_itself(
    runner: CliRunner, source_folder: Path, tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = runner.invoke(main, ["tune", str(source_folder)])
    package = next(StoredModel(str(source_folder)).folder.glob("int8-*"))
    assert (result.exit_code, result.stdout) == (0, f"{package}\n")
    assert tuned == [(package, source_folder)]
    assert "0.5 nats a token" in result.stderr
    assert "320 tokens" in result.stderr
    assert result.stderr.endswith("Warning: it strays\n")
    assert "measures its quality" not in result.stderr
    assert not any(part.is_untuned for part in StoredModel(str(source_folder)).parts())


def test_a_tuned_model_is_left_alone(runner: CliRunner, source_folder: Path, tuned: Tuned) -> None:
    first, second = (runner.invoke(main, ["tune", str(source_folder)]) for _ in range(2))
    assert first.stdout == second.stdout
    assert second.stderr == f"'{source_folder}' is tuned already.\n"
    assert len(tuned) == 1


def test_figures_come_with_the_source(
    runner: CliRunner, package: PackageCopy, source_folder: Path, tuned: Tuned
) -> None:
    package.change_manifest(checks={})
    alone = runner.invoke(main, ["tune", str(package.folder)])
    assert f"`reader-edge tune {package.folder} --source SOURCE` measures its quality too." in alone.stderr
    both = runner.invoke(main, ["tune", str(package.folder), "--source", str(source_folder)])
    assert (alone.exit_code, both.exit_code) == (0, 0)
    assert "--source" not in both.stderr
    assert tuned == [(package.folder, None), (package.folder, source_folder)]


def test_a_source_is_for_packages(runner: CliRunner, source_folder: Path, tuned: Tuned) -> None:
    result = runner.invoke(main, ["tune", str(source_folder), "--source", str(source_folder)])
    assert result.exit_code == 2
    assert result.stderr == f"Error: '{source_folder}' is no package, but a source itself: leave --source out.\n"
    assert not tuned


def test_two_at_once_tune_once(package: PackageCopy, tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    both, lock = threading.Barrier(2), StoredModel.locked

    def locked(stored: StoredModel) -> AbstractContextManager[None]:
        both.wait(60)
        return lock(stored)

    monkeypatch.setattr(StoredModel, "locked", locked)
    assert tune.callback is not None
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(tune.callback, [str(package.folder)] * 2, [None] * 2))
    assert tuned == [(package.folder, None)]


def test_who_tunes_a_stored_package_holds_its_model(source_folder: Path, package: PackageCopy) -> None:
    stored = StoredModel("owner/model")
    inside = stored.package("gguf", "key")
    inside.parent.mkdir(parents=True)
    with stored.locked():
        PackageCopy(package.folder, inside)
    assert model_around(inside).folder == stored.folder
    assert model_around(package.folder).folder != stored.folder


CONFIG = EngineConfig(is_calibrated=False, is_probed=False)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text("# tar\n# git rebase\n")
    return path


@pytest.mark.long
def test_own_prompts_come_first_up_to_the_limit(runner: CliRunner, package: PackageCopy, prompts: Path) -> None:
    command = ["warm", str(package.folder), "--no-calibrate", "--prompts", str(prompts), "--tokens", "250"]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "of 250 tokens in" in result.stdout
    answers = WarmupAnswers.of_package(ModelPackage.open(package.folder))
    assert answers is not None
    assert answers.num_tokens == 250
    engine = Engine.load(package.folder, CONFIG)
    answer_ids = engine.generate("# tar", GenerationConfig(max_tokens=8)).token_ids
    expected = [*engine.encode_prompt("# tar")[-PROMPT_TAIL:], *answer_ids]
    assert answers.texts[0].tolist()[: len(expected)] == expected


@pytest.mark.parametrize("max_batch", [1, 3])
def test_what_is_kept_does_not_depend_on_which_answers_ended_first(demo_folder: Path, max_batch: int) -> None:
    questions = [EvalPrompt(prompt.turns[0]) for prompt in bundled_instructions(6)]
    config = GenerationConfig(max_tokens=20)
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False, max_batch=max_batch))
    kept = answer_all(engine, questions, config, 70)
    assert kept.num_tokens == 70
    alone = [answer_all(engine, [question], config, 1000).texts[0] for question in questions]
    assert np.concatenate(kept.texts).tolist() == np.concatenate(alone).tolist()[:70]


def test_a_first_answer_is_drafted_from_them_and_is_the_plain_one(package: PackageCopy) -> None:
    config = GenerationConfig(max_tokens=60)
    plain = Engine.load(package.folder, CONFIG)
    expected = plain.generate("# tar", GenerationConfig(max_tokens=60, is_drafted=False)).token_ids
    answer_all(plain, [EvalPrompt("# tar")], config, 100).write(plain.package)
    warm = Engine.load(package.folder, CONFIG)
    warm.decoder.drafter.wait()  # type: ignore[attr-defined]
    result = warm.generate("# tar", config)
    assert result.token_ids == expected
    assert result.stats.accepted_by_source["history"] > 0


def test_an_interrupt_changes_nothing(runner: CliRunner, package: PackageCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    engine = Engine.load(package.folder, CONFIG)
    path = answer_all(engine, [EvalPrompt("# tar")], GenerationConfig(max_tokens=5), 100).write(engine.package)
    before = path.read_bytes()
    monkeypatch.setattr("reader_edge_runtime.decoding.decoder.Decoder.step", interrupted)
    assert runner.invoke(main, ["warm", str(package.folder), "--no-calibrate"]).exit_code == 130
    assert path.read_bytes() == before
    assert [each.name for each in package.folder.iterdir() if each.name.startswith(".")] == []


def test_without_a_file_no_answer(runner: CliRunner, package: PackageCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    (package.folder / WARMUP_ANSWERS_NAME).mkdir()
    monkeypatch.setattr("reader_edge_runtime.drafting.sources.warmup_answers.WarmupAnswers.of_package", lambda _: None)
    monkeypatch.setattr("reader_edge_runtime.decoding.decoder.Decoder.step", lambda _: pytest.fail("answered"))
    result = runner.invoke(main, ["warm", str(package.folder), "--no-calibrate"])
    assert result.exit_code == 1
    assert f"{WARMUP_ANSWERS_NAME}' cannot be written (Not a regular file): copy the package to" in result.stderr


def test_a_damaged_file_is_shown_in_one_sentence(runner: CliRunner, package: PackageCopy) -> None:
    (package.folder / WARMUP_ANSWERS_NAME).write_bytes(bytes(200))
    result = runner.invoke(main, ["run", str(package.folder), "-p", "# tar", "-n", "4", "--no-calibrate"])
    assert result.exit_code == 1
    assert WARMUP_ANSWERS_NAME in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_bundled_instructions_are_many_and_none_comes_twice() -> None:
    varied = read_prompts(INSTRUCTIONS)
    bundled = bundled_instructions(4000)
    assert len(bundled) == len({prompt.turns for prompt in bundled}) == 4000
    assert [each.turns for each in bundled[: len(varied)]] == [each.turns for each in varied]
    assert len(bundled_instructions(3)) == 3
