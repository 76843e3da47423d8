"""Spreading: the same product for any size, and less of it lost to rounding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_export.onnx_graph.shared_constants import MAX_BLOCK
from reader_edge_export.quantize.hadamard import HadamardRotation, block_size, hadamard
from reader_edge_export.quantize.int8 import quantize_columns, quantize_rotated
from reader_edge_runtime.arrays import Float32Array
from tests.export.moments import moments_of

SIZES = [1, 6, 37, 64, 96, 576, 1200, 1536]


@pytest.mark.parametrize("size", [1, 2, 16, MAX_BLOCK])
def test_a_hadamard_matrix_is_its_own_inverse_but_for_its_size(size: int) -> None:
    np.testing.assert_array_equal(hadamard(size) @ hadamard(size), size * np.eye(size, dtype=np.float32))


@given(st.integers(1, 20_000))
def test_blocks_are_the_largest_that_divide_the_inputs(num_inputs: int) -> None:
    block = block_size(num_inputs)
    assert num_inputs % block == 0
    assert block == MAX_BLOCK or num_inputs // block % 2 == 1


@given(st.integers(0, 8), st.integers(-20, 20), st.integers(0, 2**32 - 1))
def test_sums_of_rounded_rows_are_exact_in_any_order(log_block: int, exponent: int, seed: int) -> None:
    block = 2**log_block
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal(block) * np.exp(4 * rng.standard_normal(block)) * 2.0**exponent).astype(np.float32)
    height = np.float32(2 * block) * np.abs(rows).max()
    rounded = (rows + height) - height
    orders = [rounded, rounded[::-1], rng.permutation(rounded)]
    for sums in (np.add.accumulate(order, dtype=np.float32) for order in orders):
        assert sums[-1] == rounded.astype(np.float64).sum()
    assert np.abs(rounded - rows).max() <= np.abs(rows).max() * block * 2.0**-22


@pytest.mark.parametrize("num_inputs", SIZES)
def test_spread_rows_times_the_spread_weight_are_the_product(num_inputs: int) -> None:
    rows, weight = _rows(num_inputs), _weight(num_inputs)
    rotation = HadamardRotation.fit(weight, moments_of(rows))
    expected = rows.astype(np.float64) @ weight
    error = np.abs(rotation.rows(rows) @ rotation.weight(weight) - expected).max()
    assert error < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("num_inputs", SIZES)
def test_the_moments_of_spread_rows_follow_from_those_of_rows(num_inputs: int) -> None:
    rows = _rows(num_inputs)
    rotation = HadamardRotation.fit(_weight(num_inputs), moments_of(rows))
    found, expected = rotation.moments(moments_of(rows)), moments_of(rotation.rows(rows))
    assert found.num_rows == expected.num_rows
    for gram, wanted in zip(found.grams, expected.grams, strict=True):
        np.testing.assert_allclose(gram, wanted, atol=2e-5 * np.abs(wanted).max())


def test_inputs_that_the_text_leaves_silent_are_not_stretched_without_bound() -> None:
    rows, weight = _rows(64), _weight(64)
    rows[:, 5] = 0
    weight[7] = 0
    smoothing = np.abs(HadamardRotation.fit(weight, moments_of(rows)).smoothing)
    assert np.isfinite(smoothing).all()
    assert smoothing.max() < 100 * np.median(smoothing) < 10_000 * smoothing.min()


@pytest.mark.parametrize("num_inputs", [64, 576, 1536])
def test_large_inputs_no_longer_take_the_steps_of_all(num_inputs: int) -> None:
    rows, weight = _rows(num_inputs), _weight(num_inputs)
    rows[:, ::61] *= 40
    rotation = HadamardRotation.fit(weight, moments_of(rows))
    integers, scales = quantize_rotated(weight, rotation, moments_of(rows))
    plain_integers, plain_scales = quantize_columns(weight)
    expected = rows @ weight

    def error(rows: Float32Array, weight: Float32Array, num_steps: int) -> float:
        steps = np.abs(rows).max(axis=1, keepdims=True) / num_steps
        return float(np.square(np.rint(rows / steps) * steps @ weight - expected).mean())

    before = error(rows, plain_integers * plain_scales, 127)
    now, fine = (error(rotation.rows(rows), integers.T * scales, steps) for steps in (127, 32639))
    assert fine < now < before / 4


def _rows(num_inputs: int) -> Float32Array:
    """Of magnitudes that differ by input, and correlated."""
    rng = np.random.default_rng(num_inputs)
    rows = rng.standard_normal((300, num_inputs)) + rng.standard_normal((300, 1))
    return (rows * np.exp(rng.standard_normal(num_inputs))).astype(np.float32)


def _weight(num_inputs: int) -> Float32Array:
    return np.random.default_rng(1).standard_normal((num_inputs, 24), np.float32)
