"""What a package wrote itself to learn from: kept, continued, written again where it was erased."""

from functools import partial
from pathlib import Path

import pytest

from reader_edge_export.speculators.training.generated_answers import AnswerSizes, GeneratedAnswers, Manner
from reader_edge_export.speculators.training.record_answers import held_out_apart, instructions
from reader_edge_export.speculators.training.state_recorder import StateRecorder, StateRequest
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.speculators.speculator_folders import HIDDEN_SIZE as HIDDEN
from tests.tiny_models import VOCAB_SIZE

SHORT = Manner(partial(StateRecorder, [0]), 12, is_sampled=False)


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
def test_prompts_are_answered_again_sampled_answers_where_one_round_is_not_enough(
    package: Path, tmp_path: Path
) -> None:
    written = kept(package, tmp_path)
    prompts = instructions()[:16]
    written.write(package, prompts, 300, float("inf"), lambda done, total: None)
    first, second = list(written.parts())[:2]
    assert [each.prompt_ids.tolist() for each in first] == [each.prompt_ids.tolist() for each in second]
    assert [each.token_ids.tolist() for each in first] != [each.token_ids.tolist() for each in second]
    learned, held_out = held_out_apart([*first, *second])
    assert (len(learned), len(held_out)) == (30, 2)
    assert held_out[0].prompt_ids.tolist() == held_out[1].prompt_ids.tolist()


def test_a_model_that_says_nothing_is_not_prompted_for_ever(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = kept(package, tmp_path)
    monkeypatch.setattr(StateRequest, "finish", lambda request: None)
    written.write(package, instructions()[:16], 300, float("inf"), lambda done, total: None)
    assert list(written.parts()) == []
