"""Calibration: what a text's rows are like at each matrix, the model left as it was."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reader_edge_export import calibration
from reader_edge_export.calibration import InputMoments, calibrate, max_calibration_tokens, run_sizes

SEQUENCES = [list(range(3, 103)), list(range(70, 190)), [5]]
NUM_TOKENS = sum(map(len, SEQUENCES))


@pytest.fixture(params=["llama", "gpt2", "gemma3_text"])
def model(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> PreTrainedModel:
    source: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_model(request.param)).eval()
    return source


def test_every_product_of_a_model_is_known_by_its_matrix(model: PreTrainedModel) -> None:
    found = calibrate(model, SEQUENCES)
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim == 2 and "emb" not in name and "wte" not in name and "wpe" not in name:
            matrix = weight.detach().numpy() if type(module).__name__ == "Conv1D" else weight.detach().numpy().T
            moments = found.inputs_of(np.ascontiguousarray(matrix))
            assert moments.num_rows == NUM_TOKENS
            assert sum(len(gram) for gram in moments.grams) == len(matrix)
            assert (moments.root_mean_squares() > 0).any()


def test_the_heads_inputs_are_those_of_all_tokens(model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    rows: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0][0]))
    for token_ids in SEQUENCES:
        model(torch.tensor([token_ids]), use_cache=False)
    hook.remove()
    (gram,) = calibrate(model, SEQUENCES).inputs_of(head.weight.detach().numpy().T).grams
    expected = torch.cat(rows).detach().double().numpy()
    np.testing.assert_allclose(gram, expected.T @ expected, rtol=1e-4, atol=1e-3)


def test_the_model_computes_as_before(model: PreTrainedModel) -> None:
    token_ids = torch.tensor(SEQUENCES[:1])
    before = model(token_ids).logits
    calibrate(model, SEQUENCES)
    torch.testing.assert_close(model(token_ids).logits, before, rtol=0, atol=0)


def test_large_models_are_calibrated_on_less_text() -> None:
    assert max_calibration_tokens(100_000_000) == 10_000
    assert max_calibration_tokens(500_000_000) == 2000
    assert max_calibration_tokens(70_000_000_000) == 1000


def test_matrices_that_are_equal_share_their_rows() -> None:
    found = calibration.Calibration()
    weight = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    assert found.moments_for(weight) is found.moments_for(np.asfortranarray(weight))
    assert found.moments_for(weight) is not found.moments_for(weight + np.float32(1))


@pytest.mark.parametrize("num_inputs", [1, 255, 896, 1024, 1025, 4864, 14336])
def test_wide_inputs_are_cut_into_runs_of_whole_blocks(num_inputs: int) -> None:
    sizes = run_sizes(num_inputs)
    assert sum(sizes) == num_inputs
    assert max(sizes) <= 1024
    assert all(size % calibration.RUN_STEP == 0 for size in sizes[:-1])
    assert [len(gram) for gram in InputMoments.none(num_inputs).grams] == sizes
