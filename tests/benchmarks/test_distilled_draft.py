"""Distilled draft models: what they learn from and that it is learned, what steers them, and how it is measured."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.draft_module import DraftModule, Steering
from benchmarks.draft_texts import DraftTexts
from benchmarks.draft_training import DraftTraining, train
from benchmarks.steered_draft import DEPTHS, measured
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_export.sources.hugging_face import find_folder
from reader_edge_runtime.package.model_package import ModelPackage

HIDDEN = 16
COUNT = 24  # of the tokens that answers are made of
TOLD = np.random.default_rng(1).standard_normal((COUNT, HIDDEN)).astype(np.float16)  # the state each is chosen from


def answers_of(*lengths: int) -> list[RecordedAnswer]:
    """Answers that count on, each behind a prompt of two tokens more than one of its own."""
    random = np.random.default_rng(0)
    found = []
    for length in lengths:
        token_ids = (random.integers(COUNT) + np.arange(length + 1)).astype(np.int32) % COUNT
        top_ids = np.stack([token_ids[1:], (token_ids[1:] + 5) % COUNT], 1)
        top_logits = np.tile(np.array([3, 0], np.float32), (length, 1))
        found.append(RecordedAnswer(np.array([1, 2], np.int32), token_ids, TOLD[token_ids[1:]], top_ids, top_logits))
    return found


@pytest.fixture
def package(demo_folder: Path) -> ModelPackage:
    return ModelPackage.open(demo_folder)


@pytest.fixture
def draft(package: ModelPackage) -> DraftModule:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return DraftModule.begun(package.manifest, torch.randn(package.manifest.vocab_size, HIDDEN))


def test_a_place_is_a_token_of_an_answer_and_what_the_target_thought_of_it() -> None:
    answers = answers_of(6, 3)
    texts = DraftTexts.of(answers)
    chosen = texts.token_ids.flatten()[texts.places]
    assert chosen.tolist() == [*answers[0].token_ids[1:6], *answers[1].token_ids[1:3]]
    assert texts.top[:, 0].tolist() == [*answers[0].token_ids[2:7], *answers[1].token_ids[2:4]]
    assert texts.numbers.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert (texts.states == torch.from_numpy(TOLD).float()[chosen]).all()


def test_a_pass_begins_with_every_answer_and_a_place_is_one_token_farther_than_the_last() -> None:
    texts = DraftTexts.of(answers_of(9, 2, 12))
    drawn = texts.drawn_depths(torch.Generator().manual_seed(0))
    for depths in (drawn, texts.even_depths(4, 1)):
        assert depths[texts.numbers == 0].tolist() == [1, 1, 1]
        assert ((depths == 1) | (depths == depths.roll(1) + 1)).all()
    assert texts.even_depths(4, 1)[:8].tolist() == [1, 2, 3, 1, 2, 3, 4, 1]


def test_a_draft_learns_what_its_target_says_and_is_written_as_a_source_to_export(
    package: ModelPackage, draft: DraftModule, tmp_path: Path
) -> None:
    answers = answers_of(*[12] * 24)
    training = DraftTraining(draft, answers, 0.5)
    training.step()
    first = training.loss
    train(training)
    assert training.loss < first
    draft.write(tmp_path, package)
    source = find_folder(tmp_path, None)
    assert source.max_context == package.manifest.max_context
    tokenizer = source.load_tokenizer(package.manifest.vocab_size)
    assert source.special_token_ids(tokenizer)[0] == package.manifest.eos_token_ids


def test_steering_begins_with_nothing_and_is_of_the_last_state_known(draft: DraftModule) -> None:
    texts = DraftTexts.of(answers_of(8))
    steering = Steering(texts.states, draft.vocabulary.shape[1])
    steered = DraftModule(draft.draft, steering)
    depths = texts.even_depths(DEPTHS, 0)
    torch.testing.assert_close(steered(texts, depths), draft(texts, depths))
    with torch.no_grad():
        steering.map.weight.normal_()
        before = steered(texts, depths)
        texts.states[1:4] += 1  # which come after the state that steers the first four places
        after = steered(texts, depths)
    torch.testing.assert_close(after[:4], before[:4])
    assert not torch.allclose(before, draft(texts, depths))


def test_guesses_are_told_by_depth_and_a_chain_ends_with_the_first_wrong_one(
    draft: DraftModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = DraftTexts.of(answers_of(12, 12))

    def guesses(self: DraftModule, texts: DraftTexts, depths: torch.Tensor) -> torch.Tensor:
        """Right at the first depth, second best at the second, and wrong behind."""
        best = torch.where(depths == 1, texts.top[:, 0], -1)
        return torch.stack([best, torch.where(depths == 2, texts.top[:, 0], -1)], 1)

    monkeypatch.setattr(DraftModule, "guesses", guesses)
    found = measured(draft, texts)
    assert (found.top1, found.top4, found.chain) == ([1, 0, 0, 0], [1, 1, 0, 0], 1)
