"""A small SmolVLM learns what is drawn: what it is taught is right, and what it learned comes out of an engine."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from models import train_shapes
from models.shapes import COLOURS, COUNT, DESCRIBE, PLACES, QUESTIONS, Picture, draw
from models.train_shapes import RULES, TEMPLATE, batch_of, conversation, new_model, save, tiles_of, train
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.images.patches import prepare

SIDE, CELL = 64, 32


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As trainings have; beside other work, steps as short as these wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_shapes.make_tokenizer()


def pictures(num: int) -> list[Picture]:
    random = np.random.default_rng(1)
    return [draw(random) for _ in range(num)]


def test_answers_say_what_is_drawn() -> None:
    for picture in pictures(40):
        assert len(picture.shapes) == sum("Nothing" not in picture.answer(question) for question in QUESTIONS[2:])
        assert picture.answer(DESCRIBE).startswith(picture.answer(COUNT))
        for number, place in enumerate(PLACES):
            top, left = number // 2 * CELL, number % 2 * CELL
            cell = picture.pixels[top : top + CELL, left : left + CELL].reshape(-1, 3).astype(int)
            ground = (cell == cell[0]).all(1)
            assert ground.all() == (place not in picture.shapes)
            if place in picture.shapes:
                colour, form = picture.shapes[place]
                assert picture.answer(f"What is at the {place}?") == f"A {colour} {form} is at the {place}."
                assert abs(cell[~ground] - COLOURS[colour]).max() <= 20


@pytest.mark.long
def test_what_is_trained_is_what_an_engine_reads(tokenizer: Tokenizer) -> None:
    (picture,) = pictures(1)
    parts = prepare(picture.pixels, RULES)
    expected = np.concatenate([part.inputs["pixels"] for part in parts])
    np.testing.assert_allclose(tiles_of([picture])[0].numpy(), expected, atol=1e-6)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    text = {"type": "text", "text": DESCRIBE}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image"}, text]},
        {"role": "assistant", "content": [{"type": "text", "text": picture.answer(DESCRIBE)}]},
        {"role": "user", "content": [{"type": "text", "text": COUNT}]},
    ]
    rendered = fast.apply_chat_template(messages, chat_template=TEMPLATE, add_generation_prompt=True, tokenize=False)
    whole = str(rendered).replace(RULES.placeholder, "".join(part.text for part in parts))
    pieces = conversation(picture, [DESCRIBE, COUNT], tokenizer)
    assert [token_id for ids, _ in pieces[:-1] for token_id in ids] == tokenizer.encode(whole).ids


@pytest.mark.long
def test_a_run_that_was_interrupted_ends_with_the_same_weights(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_shapes, "SAVE_EVERY", 1)
    whole = new_model(tokenizer)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    train(whole, tokenizer, 3, 2, tmp_path / "whole")

    def stopped(seed: Sequence[int], *arguments: Any) -> dict[str, torch.Tensor]:
        if seed[-1] == 2:
            raise KeyboardInterrupt
        return batch_of(list(seed), *arguments)

    resumed = new_model(tokenizer)
    monkeypatch.setattr(train_shapes, "batch_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(resumed, tokenizer, 3, 2, tmp_path / "cut")
    monkeypatch.setattr(train_shapes, "batch_of", batch_of)
    resumed = new_model(tokenizer)
    train(resumed, tokenizer, 3, 2, tmp_path / "cut")
    assert all(torch.equal(whole.state_dict()[name], value) for name, value in resumed.state_dict().items())


@pytest.mark.long
def test_another_picture_is_seen_in_the_answer(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that learned two pictures by heart; drafts are accepted behind either."""
    both = pictures(2)
    pieces = [conversation(picture, [DESCRIBE], tokenizer) for picture in both]
    rows = [[token_id for ids, _ in each for token_id in ids] for each in pieces]
    batch = {"input_ids": torch.zeros(2, max(map(len, rows)), dtype=torch.int64), "pixel_values": tiles_of(both)}
    batch["labels"] = torch.full_like(batch["input_ids"], -100)
    for number, (row, ((prompt, _), _)) in enumerate(zip(rows, pieces, strict=True)):
        batch["input_ids"][number, : len(row)] = torch.tensor(row)
        batch["labels"][number, len(prompt) : len(row)] = torch.tensor(row[len(prompt) :])
    monkeypatch.setattr(train_shapes, "batch_of", lambda *_: batch)
    model = new_model(tokenizer)
    train(model, tokenizer, 80, 2, tmp_path)
    save(model, tokenizer, tmp_path / "model")
    export_model(tmp_path / "model", tmp_path / "package", ExportOptions("int8", check="quick"))
    KernelLoader.shared().wait()
    with Engine.load(tmp_path / "package", EngineConfig(is_calibrated=False)) as engine:
        for is_drafted in (False, True, True):
            config = GenerationConfig(max_tokens=96, is_drafted=is_drafted)
            results = [engine.generate(DESCRIBE, config, images=[Image.fromarray(each.pixels)]) for each in both]
            assert [result.text.strip() for result in results] == [picture.answer(DESCRIBE) for picture in both]
    assert all(result.stats.num_accepted_tokens > 0 for result in results)
