"""Questions about drawn images: of models that see, as far as they fit."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.drawn_images import drawn_image, questions_about_images
from reader_edge.verify.plain_answers import behind_long_texts
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.decoding.request import Request
from tests.seeing_engine import seeing_engine

QUESTIONS = [EvalPrompt("the cat"), EvalPrompt("tides rise and fall")]
CONFIG = GenerationConfig(max_tokens=8)


def test_the_same_seed_draws_the_same_image_and_another_one_another() -> None:
    np.testing.assert_array_equal(drawn_image(1, 40, 64), drawn_image(1, 40, 64))
    assert drawn_image(1, 40, 64).shape == (40, 64, 3)
    assert np.mean(drawn_image(1, 40, 64) != drawn_image(2, 40, 64)) > 0.5


def test_a_model_of_texts_gets_no_images(shared_engine: Engine) -> None:
    assert questions_about_images(shared_engine, QUESTIONS, CONFIG) == ([], [])


def test_two_questions_differ_in_their_image_alone(tmp_path: Path) -> None:
    engine, _ = seeing_engine(tmp_path, 1024)
    found, refusals = questions_about_images(engine, QUESTIONS, CONFIG)
    requests = [engine.answer(each.prompt, CONFIG).request for each in found]
    (one, other), ids = requests[:2], [each.prompt_token_ids for each in requests]
    assert (len(found), refusals) == (4, [])
    assert ids[0] == ids[1]
    assert one.token_ids != other.token_ids
    assert [each.text for each in found[:3]] == ["the cat", "the cat", "tides rise and fallthe cat"]


def test_questions_that_fit_no_context_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    engine, tower = seeing_engine(tmp_path, 256)
    found, refusals = questions_about_images(engine, QUESTIONS[:1], CONFIG)
    assert 0 < len(found) < 4 == len(found) + len(refusals)
    assert all("context of 256" in each for each in refusals)
    assert tower.num_passes == 0


def test_without_pillow_a_sentence_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = seeing_engine(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found, (refusal,) = questions_about_images(engine, QUESTIONS, CONFIG)
    assert found == []
    assert "Images need Pillow" in refusal


def test_images_of_other_prompts_stand_before_one_where_they_are_whole(tmp_path: Path) -> None:
    engine, _ = seeing_engine(tmp_path, 1024)
    found, _ = questions_about_images(engine, QUESTIONS, CONFIG)
    reader = engine.__dict__["_prompt_reader"]
    prompts = [reader.read(each.prompt) for each in (*QUESTIONS, *found)]
    for prompt, behind in zip(prompts, behind_long_texts(prompts, 900, 1024, 8), strict=True):
        request = Request(behind.token_ids, CONFIG, engine.package.manifest, images=behind.images)  # counts agree
        assert request.num_prompt_tokens in range(897, 901)
        assert len(behind.images) > len(prompt.images)
        assert behind.token_ids[-len(prompt.token_ids) :] == prompt.token_ids
        assert request.drafted_ids == behind.text_ids
