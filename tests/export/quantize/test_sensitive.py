"""Sensitivity: what errors of a matrix do to the next token, and which int4 leaves in eight bits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reader_edge_export.calibration.calibrate import products_of
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.sensitivity import embedding_of, max_sensitivity_tokens, measure_sensitivity
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS
from reader_edge_export.options import ExportOptions
from reader_edge_export.pipeline import export_model
from reader_edge_export.quantize.sensitive import Candidate, sensitive_matrices
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.weights import Matrix, Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.conftest import Exported, TinyModel
from tests.export.moments import moments_of
from tests.export.source_models import layered, load_folder
from tests.tiny_models import TINY_MODELS, VOCAB_SIZE

SEQUENCES = np.random.default_rng(0).integers(3, VOCAB_SIZE, (8, 40)).tolist()


@pytest.fixture
def load(tiny_model: TinyModel) -> Callable[[str], PreTrainedModel]:
    return lambda model_type: AutoModelForCausalLM.from_pretrained(tiny_model(model_type)).eval()


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_every_matrix_has_gradients(model_type: str, tiny_model: TinyModel) -> None:
    model, calibration = layered(tiny_model(model_type)), Calibration()
    measure_sensitivity(model, SEQUENCES, calibration)
    embedding, head = (model.source.names[id(weight)] for weight in _vocabulary(model))
    outputs = {name: module.weight.shape[0] for layer in model.layers for module, name in _products(model, layer)}
    outputs |= {head: model.head.weight.shape[0], embedding_of(head) if head == embedding else embedding: _width(model)}
    for name, num_outputs in outputs.items():
        gradients = calibration.gradients_of(name)
        num_uses = 2 if name.endswith("modality_router.weight") else 1
        assert gradients.num_rows == num_uses * sum(map(len, SEQUENCES))
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
def test_gradients_are_those_of_the_whole_model(model_type: str, matrix: str, tiny_model: TinyModel) -> None:
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


def test_divergence_of_small_errors_is_predicted(load: Callable[[str], PreTrainedModel], tiny_model: TinyModel) -> None:
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


def test_head_gradients_are_those_of_a_softmax(load: Callable[[str], PreTrainedModel], tiny_model: TinyModel) -> None:
    model, calibration = load("llama"), Calibration()
    source = layered(tiny_model("llama"))
    measure_sensitivity(source, SEQUENCES, calibration)
    found = calibration.gradients_of(source.source.names[id(source.head.weight)]).mean_squares().sum()
    probabilities = _log_probabilities(model, torch.tensor(SEQUENCES)).exp()
    expected = float((probabilities * (1 - probabilities)).sum(dim=-1).mean())
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_rounded_lookups_are_predicted(
    model_type: str, load: Callable[[str], PreTrainedModel], tiny_model: TinyModel
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


def test_it_is_the_same_every_time_and_leaves_no_gradient_behind(tiny_model: TinyModel) -> None:
    model, calibrations = layered(tiny_model("llama")), [Calibration(), Calibration()]
    for calibration in calibrations:
        measure_sensitivity(model, SEQUENCES, calibration)
    name = "model.layers.0.mlp.up_proj.weight"
    first, second = (calibration.gradients_of(name).squares for calibration in calibrations)
    np.testing.assert_array_equal(first, second)
    assert all(parameter.grad is None for parameter in model.source.skeleton.parameters())


def test_large_models_are_measured_on_less() -> None:
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


def test_a_matrix_whose_outputs_decide_gets_eight_bits() -> None:
    groups = [[_matrix(seed)] for seed in range(6)]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[2][0].name).squares *= 14
    assert _sensitive(groups, calibration) == {groups[2][0].name}


def test_matrices_of_the_same_rows_stay_together() -> None:
    groups = [[_matrix(0), _matrix(1)], *([_matrix(seed)] for seed in range(2, 9))]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[0][1].name).squares *= 30
    assert _sensitive(groups, calibration) == {part.name for part in groups[0]}


def test_large_weights_and_large_rows_count() -> None:
    groups = [[_matrix(seed)] for seed in range(9)]
    groups[1] = [_matrix(1, factor=4)]
    calibration = _calibration(groups)
    larger = calibration.inputs_of(groups[4][0].name)
    larger.grams[0] *= 16
    calibration.add_inputs([groups[4][0].name], larger)
    assert _sensitive(groups, calibration) == {groups[index][0].name for index in (1, 4)}


def test_the_longer_of_two_matrices_with_one_loss_stays_in_four_bits() -> None:
    groups = [[_matrix(0, num_outputs=20)], [_matrix(1, num_outputs=200)]]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[0][0].name).squares *= 10
    assert _sensitive(groups, calibration) == {groups[0][0].name}


def test_matrices_that_are_alike_get_eight_bits_within_three_eighths_of_all_bytes() -> None:
    groups = [[_matrix(seed)] for seed in range(40)]
    assert len(_sensitive(groups, _calibration(groups))) == int(40 * 0.375 * 4.25 / 3.75)


def test_matrices_that_never_are_in_four_bits_do_not_count() -> None:
    wide = Candidate([replace(_matrix(0), shape=(MAX_INPUTS + 1, 1))], 1e9)
    groups = [[_matrix(seed)] for seed in range(6)]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[0][0].name).squares *= 14
    others = [Candidate.products(group, calibration) for group in groups]
    assert sensitive_matrices([wide, *others]) == {groups[0][0].name}


def test_lookups_count_where_embeddings_are_the_heads() -> None:
    head = _matrix(0, num_outputs=200)
    calibration = _calibration([[head]])
    looked_up = calibration.gradients_for(embedding_of(head.name), 64)
    looked_up.squares[:], looked_up.num_rows = 1, 1
    alone, tied = (Candidate.vocabulary(head, is_tied, calibration) for is_tied in (False, True))
    assert alone.loss == Candidate.products([head], calibration).loss
    assert tied.loss > alone.loss
    looked_up.squares *= 3
    assert Candidate.vocabulary(head, True, calibration).loss - alone.loss == pytest.approx(
        3 * (tied.loss - alone.loss)
    )


def test_an_int4_package_has_products_of_both_kinds(exported: Exported) -> None:
    kinds = [node.op_type for node in ir.load(exported("llama", "int4", "exact", is_checked=False) / GRAPH_NAME).graph]
    assert kinds.count("SpreadBlockLinear") > 0
    assert kinds.count("SpreadRowLinear") > 0


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
def test_a_vocabulary_in_four_bits_is_computed_with_and_looked_up_from(
    model_type: str, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge_export.quantize.weight_storage.sensitive_matrices", lambda _: frozenset())
    monkeypatch.setattr("reader_edge_export.checks.package_check.max_quality_tokens", lambda _: 1000)
    export_model(tiny_model(model_type), tmp_path / "out", ExportOptions("int4"))  # compares trees with decoding
    package = ModelPackage.open(tmp_path / "out")
    assert package.manifest.checks["top1_agreement"] > 0.7
    graph = ir.load(package.path(GRAPH_NAME)).graph
    stored = {value.name or "" for value in graph.initializers.values()}
    assert any(name.startswith("vocabulary.int4") for name in stored)
    assert not any(name.startswith("vocabulary.int8") for name in stored)
    tree, rows = DraftTree.chain([5, 9, 2, 7]), [range(4)]
    native, defined = (
        target.forward(target.new_cache(1, 8), Pass(0, [tree], rows, wants_logits=True)).logits
        for target in (HostTarget.open(package, 1, uses_native) for uses_native in (True, False))
    )
    assert native is not None
    assert defined is not None
    np.testing.assert_array_equal(native, defined)


def _sensitive(groups: list[list[Matrix]], calibration: Calibration) -> frozenset[str]:
    return sensitive_matrices([Candidate.products(group, calibration) for group in groups])


class _OneMatrix(Weights):
    def __init__(self, values: Float32Array) -> None:
        self._values = values

    def read(self, name: str) -> Float32Array:
        return self._values


def _matrix(seed: int, num_outputs: int = 16, factor: float = 1) -> Matrix:
    values = factor * np.random.default_rng(seed).standard_normal((64, num_outputs), np.float32)
    return Matrix(f"matrix {seed}", values.shape, False, _OneMatrix(values))


def _calibration(groups: list[list[Matrix]]) -> Calibration:
    """Of rows and gradients that are alike everywhere."""
    calibration = Calibration()
    for group in groups:
        for part in group:
            rows = np.random.default_rng(9).standard_normal((300, part.shape[0]), np.float32)
            calibration.add_inputs([part.name], moments_of(rows))
            gradients = calibration.gradients_for(part.name, part.shape[1])
            gradients.squares[:] = 1
            gradients.num_rows = 1
    return calibration
