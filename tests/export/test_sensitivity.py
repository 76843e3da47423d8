"""Sensitivity: what errors at the outputs of a matrix do to the model's next token."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reader_edge_export.architectures import SUPPORTED
from reader_edge_export.calibration import Calibration, matrices_of
from reader_edge_export.sensitivity import max_sensitivity_tokens, measure_sensitivity
from tests.tiny_models import VOCAB_SIZE

SEQUENCES = np.random.default_rng(0).integers(3, VOCAB_SIZE, (8, 40)).tolist()


@pytest.fixture
def load(tiny_model: Callable[[str], Path]) -> Callable[[str], PreTrainedModel]:
    return lambda model_type: AutoModelForCausalLM.from_pretrained(tiny_model(model_type)).eval()


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_every_matrix_has_gradients(model_type: str, load: Callable[[str], PreTrainedModel]) -> None:
    model = load(model_type)
    calibration = Calibration()
    measure_sensitivity(model, SEQUENCES, calibration)
    for matrix in [matrix for matrix, _ in matrices_of(model)] + [_embedding(model)]:
        gradients = calibration.gradients_of(matrix)
        assert gradients.num_rows == sum(map(len, SEQUENCES))
        assert gradients.mean_squares().shape == matrix.shape[1:]
        assert gradients.squares.sum() > 0


def test_the_divergence_of_small_errors_is_foretold(load: Callable[[str], PreTrainedModel]) -> None:
    model = load("llama")
    calibration = Calibration()
    measure_sensitivity(model, SEQUENCES, calibration)
    token_ids = torch.tensor(SEQUENCES)
    expected = _log_probabilities(model, token_ids)
    generator = torch.Generator().manual_seed(1)
    for layer in (model.model.layers[0].mlp.down_proj, model.model.layers[-1].self_attn.o_proj):
        size = 0.02 * _outputs(layer, model, token_ids).std()
        hook = layer.register_forward_hook(
            lambda _module, _inputs, rows, size=size: rows + size * torch.randn(rows.shape, generator=generator)
        )
        found = _log_probabilities(model, token_ids)
        hook.remove()
        divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
        matrix = layer.weight.detach().numpy().T
        foretold = float(calibration.gradients_of(matrix).mean_squares().sum() * size**2 / 2)
        assert 0.6 < foretold / divergence < 1.6


def test_gradients_of_the_head_are_those_of_a_softmax(load: Callable[[str], PreTrainedModel]) -> None:
    model = load("llama")
    calibration = Calibration()
    measure_sensitivity(model, SEQUENCES, calibration)
    found = calibration.gradients_of(model.lm_head.weight.detach().numpy().T).mean_squares().sum()
    probabilities = _log_probabilities(model, torch.tensor(SEQUENCES)).exp()
    expected = float((probabilities * (1 - probabilities)).sum(dim=-1).mean())
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_the_divergence_of_rounded_lookups_is_foretold(model_type: str, load: Callable[[str], PreTrainedModel]) -> None:
    model = load(model_type)
    calibration = Calibration()
    measure_sensitivity(model, SEQUENCES, calibration)
    embedding = _lookups(model)
    gradients = calibration.gradients_of(_embedding(model)).mean_squares()
    token_ids = torch.tensor(SEQUENCES)
    expected = _log_probabilities(model, token_ids)
    size = 0.02 * embedding.weight.std().item()
    scale = getattr(embedding, "embed_scale", 1)
    hook = embedding.register_forward_hook(
        lambda _module, _inputs, rows: (
            rows + scale * size * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
        )
    )
    found = _log_probabilities(model, token_ids)
    hook.remove()
    divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
    assert 0.6 < float(gradients.sum() * size**2 / 2) / divergence < 1.6


def test_the_model_is_left_as_it_was(load: Callable[[str], PreTrainedModel]) -> None:
    model = load("gpt2")
    token_ids = torch.tensor(SEQUENCES[:1])
    before = model(token_ids).logits
    measure_sensitivity(model, SEQUENCES, Calibration())
    after = model(token_ids).logits
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert after.requires_grad
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_it_is_the_same_every_time(load: Callable[[str], PreTrainedModel]) -> None:
    model = load("llama")
    calibrations = Calibration(), Calibration()
    for calibration in calibrations:
        measure_sensitivity(model, SEQUENCES, calibration)
    matrix = model.model.layers[0].mlp.up_proj.weight.detach().numpy().T
    first, second = (calibration.gradients_of(matrix).squares for calibration in calibrations)
    np.testing.assert_array_equal(first, second)


def test_large_models_are_asked_for_less() -> None:
    assert max_sensitivity_tokens(125_000_000) == 1000
    assert max_sensitivity_tokens(70_000_000_000) == 250


def _log_probabilities(model: PreTrainedModel, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(token_ids).logits
    return logits.double().log_softmax(dim=-1)


def _outputs(module: torch.nn.Module, model: PreTrainedModel, token_ids: torch.Tensor) -> torch.Tensor:
    rows: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output: rows.append(output))
    _log_probabilities(model, token_ids)
    hook.remove()
    return rows[0]


def _lookups(model: PreTrainedModel) -> torch.nn.Embedding:
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    return embedding


def _embedding(model: PreTrainedModel) -> npt.NDArray[np.float32]:
    weight: npt.NDArray[np.float32] = _lookups(model).weight.detach().numpy()
    return weight
