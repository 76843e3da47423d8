"""Mixed int4: eight bits go to the matrices that lose most, and to few."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.sensitivity import embedding_of
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS
from reader_edge_export.options import ExportOptions
from reader_edge_export.pipeline import export_model
from reader_edge_export.quantize.sensitive import Candidate, sensitive_matrices
from reader_edge_export.sources.weights import Matrix, Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.moments import moments_of


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


def test_an_int4_package_has_products_of_both_kinds(exported: Callable[..., Path]) -> None:
    kinds = [node.op_type for node in ir.load(exported("llama", "int4", "exact", is_checked=False) / GRAPH_NAME).graph]
    assert kinds.count("SpreadBlockLinear") > 0
    assert kinds.count("SpreadRowLinear") > 0


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
def test_a_vocabulary_in_four_bits_is_computed_with_and_looked_up_from(
    model_type: str, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
