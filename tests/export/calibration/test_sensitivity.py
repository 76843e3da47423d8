"""Sensitivity: what errors at the outputs of a matrix do to the model's next token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reader_edge_export.calibration.calibrate import products_of
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.sensitivity import embedding_of, max_sensitivity_tokens, measure_sensitivity
from reader_edge_export.sources.layered_model import LayeredModel
from tests.export.source_models import layered, load_folder
from tests.tiny_models import TINY_MODELS, VOCAB_SIZE

SEQUENCES = np.random.default_rng(0).integers(3, VOCAB_SIZE, (8, 40)).tolist()


@pytest.fixture
def load(tiny_model: Callable[[str], Path]) -> Callable[[str], PreTrainedModel]:
    return lambda model_type: AutoModelForCausalLM.from_pretrained(tiny_model(model_type)).eval()


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_every_matrix_has_gradients(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    model, calibration = layered(tiny_model(model_type)), Calibration()
    measure_sensitivity(model, SEQUENCES, calibration)
    embedding, head = (model.source.names[id(weight)] for weight in _vocabulary(model))
    outputs = {name: module.weight.shape[0] for layer in model.layers for module, name in _products(model, layer)}
    outputs |= {head: model.head.weight.shape[0], embedding_of(head) if head == embedding else embedding: _width(model)}
    for name, num_outputs in outputs.items():
        gradients = calibration.gradients_of(name)
        assert gradients.num_rows == sum(map(len, SEQUENCES))
        assert gradients.mean_squares().shape == (num_outputs,)
        assert gradients.squares.sum() > 0


@pytest.mark.parametrize(
    ("model_type", "matrix"),
    [
        ("gemma2", "layers.0.self_attn.k_proj"),
        ("gemma4_text", "layers.0.self_attn.k_proj"),  # whose keys another layer reads too, as those of the next one
        ("gemma4_text", "layers.2.self_attn.k_proj"),
        ("gemma4_text", "per_layer_model_projection"),  # read by every layer
    ],
)
def test_gradients_are_those_of_the_whole_model(
    model_type: str, matrix: str, tiny_model: Callable[[str], Path]
) -> None:
    model, calibration = load_folder(tiny_model(model_type)), Calibration()
    measure_sensitivity(layered(tiny_model(model_type)), SEQUENCES, calibration)
    generator, squares = torch.Generator().manual_seed(0), 0.0
    module = model.model.get_submodule(matrix)
    for token_ids in SEQUENCES:
        outputs: list[torch.Tensor] = []
        hook = module.register_forward_hook(lambda _m, _i, output, found=outputs: found.append(output.requires_grad_()))
        logits = model(torch.tensor([token_ids]), use_cache=False).logits[0]
        hook.remove()
        gradient = logits.detach().softmax(dim=-1)
        drawn = torch.multinomial(gradient, 1, generator=generator)
        gradient.scatter_add_(1, drawn, torch.full(drawn.shape, -1.0))
        (found,) = torch.autograd.grad(logits, outputs, gradient)
        squares += float(found.square().sum())
    assert float(calibration.gradients_of(f"model.{matrix}.weight").squares.sum()) == pytest.approx(squares, rel=1e-4)


def test_the_divergence_of_small_errors_is_predicted(
    load: Callable[[str], PreTrainedModel], tiny_model: Callable[[str], Path]
) -> None:
    model, calibration = load("llama"), Calibration()
    measure_sensitivity(layered(tiny_model("llama")), SEQUENCES, calibration)
    token_ids = torch.tensor(SEQUENCES)
    expected = _log_probabilities(model, token_ids)
    generator = torch.Generator().manual_seed(1)
    last = len(model.model.layers) - 1
    for name in ("model.layers.0.mlp.down_proj", f"model.layers.{last}.self_attn.o_proj"):
        layer = model.get_submodule(name)
        size = 0.02 * _outputs(layer, model, token_ids).std()
        hook = layer.register_forward_hook(
            lambda _module, _inputs, rows, size=size: rows + size * torch.randn(rows.shape, generator=generator)
        )
        found = _log_probabilities(model, token_ids)
        hook.remove()
        divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
        predicted = float(calibration.gradients_of(f"{name}.weight").mean_squares().sum() * size**2 / 2)
        assert 0.6 < predicted / divergence < 1.6


def test_gradients_of_the_head_are_those_of_a_softmax(
    load: Callable[[str], PreTrainedModel], tiny_model: Callable[[str], Path]
) -> None:
    model, calibration = load("llama"), Calibration()
    source = layered(tiny_model("llama"))
    measure_sensitivity(source, SEQUENCES, calibration)
    found = calibration.gradients_of(source.source.names[id(source.head.weight)]).mean_squares().sum()
    probabilities = _log_probabilities(model, torch.tensor(SEQUENCES)).exp()
    expected = float((probabilities * (1 - probabilities)).sum(dim=-1).mean())
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_the_divergence_of_rounded_lookups_is_predicted(
    model_type: str, load: Callable[[str], PreTrainedModel], tiny_model: Callable[[str], Path]
) -> None:
    model, calibration = load(model_type), Calibration()
    measure_sensitivity(layered(tiny_model(model_type)), SEQUENCES, calibration)
    embedding = _lookups(model)
    name = "model.embed_tokens.weight"
    is_tied = embedding.weight is model.get_output_embeddings().weight
    gradients = calibration.gradients_of(embedding_of(name) if is_tied else name).mean_squares()
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


def test_it_is_the_same_every_time_and_leaves_no_gradient_behind(tiny_model: Callable[[str], Path]) -> None:
    model, calibrations = layered(tiny_model("llama")), [Calibration(), Calibration()]
    for calibration in calibrations:
        measure_sensitivity(model, SEQUENCES, calibration)
    name = "model.layers.0.mlp.up_proj.weight"
    first, second = (calibration.gradients_of(name).squares for calibration in calibrations)
    np.testing.assert_array_equal(first, second)
    assert all(parameter.grad is None for parameter in model.source.skeleton.parameters())


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


def _vocabulary(model: LayeredModel) -> tuple[Any, Any]:
    embedding: Any = model.source.skeleton.get_input_embeddings()
    return embedding.weight, model.head.weight


def _width(model: LayeredModel) -> int:
    return int(model.head.weight.shape[1])


def _products(model: LayeredModel, layer: torch.nn.Module) -> list[tuple[torch.nn.Linear, str]]:
    """The modules of a layer that multiply, outputs first, and the names of their matrices."""
    named = products_of([layer], model.source).items()
    return [(module, name) for module, name in named if isinstance(module, torch.nn.Linear)]
