"""What the comparison of roundings rests on: larger outliers that change nothing, and texts that are kept apart."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.outliers import enlarge_outliers
from benchmarks.trained_models import Texts, TrainedModels
from reader_edge_export.architectures import MIXTURES, RECURRENT
from reader_edge_export.calibrate import calibrate, products_of
from reader_edge_export.calibration import Calibration
from reader_edge_export.sources.module import chain_logits
from tests.export.gguf_models import GGUF_MODELS, build_source
from tests.export.source_models import layered

TOKEN_IDS = list(range(2, 60))


@pytest.mark.parametrize("model_type", [each for each in GGUF_MODELS if each not in (*RECURRENT, *MIXTURES)])
def test_larger_outliers_leave_what_a_model_says(model_type: str, tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path)
    expected = chain_logits(model, TOKEN_IDS)
    largest = _largest_inputs(tmp_path)
    enlarge_outliers(model, 10)
    torch.testing.assert_close(chain_logits(model, TOKEN_IDS), expected, atol=2e-5, rtol=0)
    model.save_pretrained(tmp_path)
    assert _largest_inputs(tmp_path) > 2 * largest


def test_texts_that_are_measured_on_are_neither_trained_nor_calibrated_on(tmp_path: Path) -> None:
    for index in range(200):
        (tmp_path / f"module_{index}.py").write_text(f"# {index} " * 700)
    texts = Texts(tmp_path)
    assert len(texts.held_out) == 24
    for text in texts.held_out:
        assert text not in texts.training
        assert text[:1000] not in texts.calibration
    assert len(texts.training) == 200 - 24 - 24


def test_a_trained_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    rng = np.random.default_rng(0)
    for index in range(60):
        words = rng.choice(["def", "return", "import", "class", "None", "self"], 800)
        (sources / f"module_{index}.py").write_text(" ".join(words))
    for name, number in (("_STEPS", 2), ("_ROWS", 1), ("NUM_TOKENS", 32)):
        monkeypatch.setattr(f"benchmarks.trained_models.{name}", number)
    models = TrainedModels(tmp_path / "cache", Texts(sources))
    model, folder = models.load("llama")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again, _ = TrainedModels(tmp_path / "cache", Texts(sources)).load("llama")
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    for parameter, same in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(parameter, same, atol=0, rtol=0)


def _largest_inputs(folder: Path) -> float:
    """How much larger than the usual one an input of a matrix is, at most."""
    model, calibration = layered(folder), Calibration()
    calibrate(model, [TOKEN_IDS], calibration)
    moments = [
        calibration.inputs_of(name) for layer in model.layers for name in products_of([layer], model.source).values()
    ]
    return float(np.max([np.max(each.root_mean_squares()) / np.median(each.root_mean_squares()) for each in moments]))
