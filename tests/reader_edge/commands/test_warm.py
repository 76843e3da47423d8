"""`reader-edge warm`: the model's own answers lie beside its package, and change how soon tokens come, none of them."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt, read_prompts
from reader_edge.warmup_answers import INSTRUCTIONS, answer_all, bundled_instructions
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.drafter import PROMPT_TAIL
from reader_edge_runtime.drafting.sources.warmup_answers import WARMUP_ANSWERS_NAME, WarmupAnswers
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.package_copy import PackageCopy

CONFIG = EngineConfig(is_calibrated=False, is_probed=False)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text("# tar\n# git rebase\n")
    return path


@pytest.mark.long
def test_answers_to_own_prompts_come_first_and_no_more_are_kept_than_requested(
    runner: CliRunner, package: PackageCopy, prompts: Path
) -> None:
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


def test_a_run_that_is_interrupted_leaves_what_was_there(
    runner: CliRunner, package: PackageCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    engine = Engine.load(package.folder, CONFIG)
    path = answer_all(engine, [EvalPrompt("# tar")], GenerationConfig(max_tokens=5), 100).write(engine.package)
    before = path.read_bytes()
    monkeypatch.setattr("reader_edge_runtime.decoding.decoder.Decoder.step", interrupted)
    assert runner.invoke(main, ["warm", str(package.folder), "--no-calibrate"]).exit_code == 130
    assert path.read_bytes() == before
    assert [each.name for each in package.folder.iterdir() if each.name.startswith(".")] == []


def test_nothing_is_answered_where_no_file_can_be_made(
    runner: CliRunner, package: PackageCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
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
