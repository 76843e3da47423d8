"""Mixed int4: eight bits go to the matrices that lose most, and to few."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.block_linear import MAX_INPUTS
from reader_edge_export.calibration import Calibration, matrix_key
from reader_edge_export.quantize.sensitive import sensitive_matrices
from reader_edge_runtime.package.manifest import GRAPH_NAME
from tests.export.moments import moments_of

Float32Array = npt.NDArray[np.float32]


def test_a_matrix_whose_outputs_decide_gets_eight_bits() -> None:
    groups = [[_matrix(seed)] for seed in range(6)]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[2][0]).squares *= 9
    assert sensitive_matrices(groups, calibration) == {matrix_key(groups[2][0])}


def test_matrices_of_the_same_rows_stay_together() -> None:
    groups = [[_matrix(0), _matrix(1)], *([_matrix(seed)] for seed in range(2, 9))]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[0][1]).squares *= 30
    assert sensitive_matrices(groups, calibration) == {matrix_key(part) for part in groups[0]}


def test_large_weights_and_large_rows_count() -> None:
    groups = [[_matrix(seed)] for seed in range(9)]
    groups[1] = [4 * groups[1][0]]
    calibration = _calibration(groups)
    calibration.inputs_of(groups[4][0]).grams[0][:] *= 16
    assert sensitive_matrices(groups, calibration) == {matrix_key(groups[index][0]) for index in (1, 4)}


def test_the_longer_of_two_matrices_with_one_loss_stays_in_four_bits() -> None:
    groups = [[_matrix(0, num_outputs=20)], [_matrix(1, num_outputs=200)]]
    calibration = _calibration(groups)
    calibration.gradients_of(groups[0][0]).squares *= 10
    assert sensitive_matrices(groups, calibration) == {matrix_key(groups[0][0])}


def test_matrices_that_are_alike_get_eight_bits_within_a_quarter_of_all_bytes() -> None:
    groups = [[_matrix(seed)] for seed in range(40)]
    assert len(sensitive_matrices(groups, _calibration(groups))) == int(40 * 0.25 * 4.25 / 3.75)


def test_without_gradients_all_stay_in_four_bits() -> None:
    assert sensitive_matrices([[_matrix(0)]], Calibration()) == frozenset()


def test_matrices_that_never_are_in_four_bits_do_not_count() -> None:
    wide = np.ones((MAX_INPUTS + 1, 1), np.float32)
    groups = [[_matrix(seed)] for seed in range(6)]
    calibration = _calibration(groups)  # which does not know the wide one
    calibration.gradients_of(groups[0][0]).squares *= 9
    assert sensitive_matrices([[wide], *groups], calibration) == {matrix_key(groups[0][0])}


def test_an_int4_package_has_products_of_both_kinds(exported: Callable[[str, str, str], Path]) -> None:
    kinds = [node.op_type for node in ir.load(exported("llama", "int4", "exact") / GRAPH_NAME).graph]
    assert kinds.count("SpreadBlockLinear") > 0
    assert kinds.count("SpreadRowLinear") > 1  # one is the logit head


def _matrix(seed: int, num_outputs: int = 16) -> Float32Array:
    return np.random.default_rng(seed).standard_normal((64, num_outputs), np.float32)


def _calibration(groups: list[list[Float32Array]]) -> Calibration:
    """Of rows and gradients that are alike everywhere."""
    rows = np.random.default_rng(9).standard_normal((300, 64), np.float32)
    calibration = Calibration()
    for group in groups:
        for part in group:
            calibration._moments[matrix_key(part)] = moments_of(rows)
            gradients = calibration.gradients_for(part)
            gradients.squares[:] = 1
            gradients.num_rows = 1
    return calibration
