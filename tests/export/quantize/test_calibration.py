"""Calibration: what a text's rows are like at each matrix, the model left as it was."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from reader_edge_export.calibration.calibrate import calibrate, matrix_sizes, max_calibration_tokens
from reader_edge_export.calibration.calibration import RUN_STEP, Calibration, InputMoments, run_sizes
from reader_edge_export.calibration.sensitivity import gradient_sizes, measure_sensitivity
from tests.export.conftest import TinyModel
from tests.export.moments import moments_of
from tests.export.source_models import layered, open_source

SEQUENCES = [list(range(3, 103)), list(range(70, 190)), [5]]
NUM_TOKENS = sum(map(len, SEQUENCES))
NAMES = [*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))]


@pytest.fixture(params=["llama", "gpt2", "gemma3_text"])
def folder(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Path:
    return tiny_model(request.param)


def test_every_product_of_a_model_is_known_by_the_name_of_its_matrix(folder: Path) -> None:
    found = _calibrated(folder)
    for name, module in AutoModelForCausalLM.from_pretrained(folder).named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim == 2 and name != "lm_head" and not isinstance(module, torch.nn.Embedding):
            moments = found.inputs_of(f"{name}.weight")
            num_inputs = weight.shape[0 if type(module).__name__ == "Conv1D" else 1]
            assert moments.num_rows == NUM_TOKENS
            assert sum(len(gram) for gram in moments.grams) == num_inputs
            assert (moments.root_mean_squares() > 0).any()


def test_inputs_are_those_of_the_whole_model(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    source = open_source(folder)
    head, found = source.names[id(source.skeleton.get_output_embeddings().weight)], _calibrated(folder)
    products = {name: module for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")}
    for name, module in products.items():
        rows: list[torch.Tensor] = []
        hook = module.register_forward_pre_hook(lambda _, inputs, rows=rows: rows.append(inputs[0][0]))
        for token_ids in SEQUENCES:
            model(torch.tensor([token_ids]), use_cache=False)
        hook.remove()
        (gram,) = found.inputs_of(head if name == "lm_head" else f"{name}.weight").grams
        expected = torch.cat(rows).detach().double().numpy()
        np.testing.assert_allclose(gram, expected.T @ expected, rtol=1e-4, atol=1e-3)


def test_products_of_the_same_rows_share_what_was_counted(tiny_model: TinyModel) -> None:
    found = _calibrated(tiny_model("llama"))
    places = [found._places[f"model.layers.0.{name}.weight"] for name in NAMES]
    assert places[0] == places[1] == places[2]
    assert places[4] == places[5]
    assert len(set(places)) == 4


def test_a_source_takes_no_memory_for_its_matrices_afterwards(folder: Path) -> None:
    model = layered(folder)
    calibrate(model, SEQUENCES, Calibration())
    matrices = [parameter for parameter in model.source.skeleton.parameters() if parameter.ndim > 1]
    assert {matrix.untyped_storage().nbytes() for matrix in matrices} == {4}


def _calibrated(folder: Path) -> Calibration:
    calibration = Calibration()
    calibrate(layered(folder), SEQUENCES, calibration)
    return calibration


def test_large_models_are_calibrated_on_less_text() -> None:
    assert max_calibration_tokens(100_000_000) == 10_000
    assert max_calibration_tokens(500_000_000) == 2000
    assert max_calibration_tokens(70_000_000_000) == 1000


@pytest.mark.parametrize("num_inputs", [1, 255, 896, 1024, 1025, 4864, 14336])
def test_wide_inputs_are_cut_into_runs_of_whole_blocks(num_inputs: int) -> None:
    sizes = run_sizes(num_inputs)
    assert sum(sizes) == num_inputs
    assert max(sizes) <= 1024
    assert all(size % RUN_STEP == 0 for size in sizes[:-1])
    assert [len(gram) for gram in InputMoments.none(num_inputs).grams] == sizes


INPUTS, GRADIENTS = {"a": 300, "b": 300, "c": 4}, {"a": 7, "c": 2}


@pytest.fixture
def noted(tmp_path: Path) -> tuple[Path, Any]:
    """A calibration's file, and what it noted of it, as JSON gives it back."""
    rng = np.random.default_rng(0)
    with (tmp_path / "moments").open("w+b") as file:
        calibration = Calibration(file)
        for names, num_inputs in ((["a", "b"], 300), (["c"], 4)):
            calibration.add_inputs(names, moments_of(rng.standard_normal((5, num_inputs), np.float32)))
        for name, num_outputs in GRADIENTS.items():
            calibration.gradients_for(name, num_outputs).add(torch.rand(3, num_outputs))
        return tmp_path / "moments", json.loads(json.dumps(calibration.noted()))


def test_a_calibration_is_recalled_as_it_was(noted: tuple[Path, Any]) -> None:
    path, note = noted
    rng = np.random.default_rng(0)
    with path.open("a+b") as file:
        calibration = Calibration(file)
        assert calibration.recall(note, INPUTS, GRADIENTS, {})
        wide, narrow = (moments_of(rng.standard_normal((5, size), np.float32)) for size in (300, 4))
        for name, moments in (("a", wide), ("b", wide), ("c", narrow)):
            np.testing.assert_array_equal(calibration.inputs_of(name).grams[0], moments.grams[0])
            assert calibration.inputs_of(name).num_rows == 5
        assert len(calibration.gradients_of("a").mean_squares()) == 7
        assert calibration.gradients_of("c").num_rows == 3


@pytest.mark.parametrize(
    "change",
    [
        None,
        [],
        {"inputs": {}},
        {"inputs": None},
        {"inputs": {"a": None, "b": None, "c": None}},
        {"inputs": {name: [0, size + 1, 5] for name, size in INPUTS.items()}},
        {"inputs": {name: [-1, size, 5] for name, size in INPUTS.items()}},
        {"inputs": {name: [1_000, size, 5] for name, size in INPUTS.items()}},
        {"inputs": {name: [0, size, 10**400] for name, size in INPUTS.items()}},
        {"inputs": {name: [0.5, size, 5] for name, size in INPUTS.items()}},
        {"inputs": {name: [0, size, float("nan")] for name, size in INPUTS.items()}},
        {"gradients": {"a": [0, 7, 3]}},
        {"gradients": {"a": [2**70, 7, 3], "c": [0, 2, 3]}},
        {"sha256": "0" * 64},
        {"experts": None},
        {"sha256": None},
    ],
)
def test_a_note_that_is_not_true_is_not_believed(change: Any, noted: tuple[Path, Any]) -> None:
    path, note = noted
    with path.open("a+b") as file:
        calibration = Calibration(file)
        assert not calibration.recall(note | change if isinstance(change, dict) else change, INPUTS, GRADIENTS, {})
        calibration.add_inputs(["a"], moments_of(np.ones((2, 3), np.float32)))
        np.testing.assert_array_equal(calibration.inputs_of("a").grams[0], np.full((3, 3), 2, np.float32))
        with pytest.raises(KeyError):
            calibration.inputs_of("c")


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "phi"])
def test_a_model_says_what_a_whole_calibration_holds(model_type: str, tiny_model: TinyModel) -> None:
    model, calibration = layered(tiny_model(model_type)), Calibration()
    calibrate(model, SEQUENCES, calibration)
    measure_sensitivity(model, SEQUENCES, calibration)
    inputs = {name: num_inputs for name, (num_inputs, _) in matrix_sizes(model.source).items()}
    assert calibration.recall(calibration.noted(), inputs, gradient_sizes(model.source), {})
    assert not calibration.recall(calibration.noted(), inputs | {"another": 1}, {}, {})
