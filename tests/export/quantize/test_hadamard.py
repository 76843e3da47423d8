"""Rotation, signs and compensation: the same product for any size, and less of it lost to rounding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_export.onnx_graph.shared_constants import MAX_BLOCK
from reader_edge_export.quantize import compensation
from reader_edge_export.quantize.compensation import BLOCK, Compensation, for_parts_of_outputs, parts_of_outputs
from reader_edge_export.quantize.hadamard import HadamardRotation, block_size, drawn_signs, hadamard, level_signs
from reader_edge_export.quantize.int8 import quantize_columns, quantize_rotated
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError
from tests.export.moments import moments_of


@pytest.mark.parametrize("num_inputs", [8, 33, 300, 1100])
@pytest.mark.parametrize("step", [0.05, 0.4])
def test_outputs_change_less_than_by_plain_rounding(num_inputs: int, step: float) -> None:
    rng = np.random.default_rng(num_inputs)
    rows = (rng.standard_normal((400, 8)) @ rng.standard_normal((8, num_inputs))).astype(np.float32)
    rows += 0.3 * rng.standard_normal(rows.shape, np.float32)
    weight = rng.standard_normal((num_inputs, 16), np.float32)
    integers, steps = Compensation(moments_of(rows)).round(weight, _every(step), -127, 127)
    assert steps.shape == (-(-num_inputs // BLOCK), 16)
    plain = np.clip(np.rint(weight / np.float32(step)), -127, 127) * step
    error, plain_error = (np.square(rows @ (rounded - weight)).sum() for rounded in (integers * step, plain))
    assert error < 0.9 * plain_error


def test_inputs_that_have_nothing_to_do_with_each_other_are_rounded_to_the_nearest() -> None:
    weight = np.random.default_rng(0).standard_normal((70, 5), np.float32)
    moments = InputMoments([np.diag(np.arange(1, 71)).astype(np.float32)], 1)
    integers, _ = Compensation(moments).round(weight, _every(0.1), -127, 127)
    np.testing.assert_array_equal(integers, np.rint(weight / np.float32(0.1)))


def test_inputs_never_seen_are_rounded_to_the_nearest() -> None:
    weight = np.random.default_rng(0).standard_normal((40, 5), np.float32)
    integers, _ = Compensation(InputMoments.none(40)).round(weight, _every(0.1), -127, 127)
    np.testing.assert_array_equal(integers, np.rint(weight / np.float32(0.1)))


@pytest.mark.parametrize("moment", [np.nan, 1e-45], ids=["none", "tiny"])
def test_inputs_by_which_nothing_can_be_rounded_are_refused(moment: float) -> None:
    with pytest.raises(ExportError, match="too large or too small to be rounded"):
        Compensation(InputMoments([np.full((8, 8), moment, np.float32)], 1))


def test_integers_stay_within_their_bounds() -> None:
    weight = 9 * np.random.default_rng(0).standard_normal((64, 50), np.float32)
    integers, _ = Compensation(moments_of(weight.T.copy())).round(weight, _every(1.0), -8, 7)
    assert (integers.min(), integers.max()) == (-8, 7)


def test_a_matrix_in_parts_is_rounded_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((48, 20), np.float32)
    rounding = Compensation(moments_of(rng.standard_normal((90, 48), np.float32)))
    whole, _ = rounding.round(weight, _every(0.2), -127, 127)
    monkeypatch.setattr(compensation, "MAX_OUTPUTS", 7)
    parts = [rounding.round(weight[:, part], _every(0.2), -127, 127)[0] for part in parts_of_outputs(20)]
    assert len(parts) == 3
    assert (np.concatenate(parts, axis=1) != whole).mean() < 0.01  # but for sums in another order


@pytest.mark.parametrize("num_outputs", [1, 5, 256, 257, 896, 9000])
def test_every_output_is_in_one_part_whatever_the_number_of_cores(num_outputs: int) -> None:
    done = np.zeros(num_outputs, np.int64)
    num_threads = torch.get_num_threads()
    seen = set()

    def count(outputs: slice) -> None:
        seen.add(torch.get_num_threads())
        done[outputs] += 1

    for_parts_of_outputs(num_outputs, count)
    np.testing.assert_array_equal(done, 1)
    assert (seen, torch.get_num_threads()) == ({1}, num_threads)


def test_a_part_that_fails_fails_the_matrix() -> None:
    def fail(outputs: slice) -> None:
        if outputs.start:
            raise ValueError("no")

    num_threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="no"):
        for_parts_of_outputs(600, fail)
    assert torch.get_num_threads() == num_threads


def _every(step: float) -> compensation.Steps:
    return lambda block: torch.full((block.shape[1],), step)


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


BLOCKS = [1, 2, 16, 64, 256]


@pytest.mark.parametrize("block", BLOCKS)
def test_signs_are_ones_and_minus_ones_of_every_block(block: int) -> None:
    signs = level_signs(np.stack([_moments(_block_rows(block, seed)) for seed in range(3)]))
    assert signs.shape == (3, block)
    np.testing.assert_array_equal(np.abs(signs), 1)


@pytest.mark.parametrize("block", [64, 256])
def test_spread_inputs_that_go_together_are_alike(block: int) -> None:
    rows = _block_rows(block)
    drawn, level = drawn_signs(block), level_signs(_moments(rows)[None])[0]
    assert _unevenness(rows * level, block) < 0.7 * _unevenness(rows * drawn, block)


def test_rows_that_were_not_seen_have_a_smaller_largest_number() -> None:
    seen, unseen = np.split(_block_rows(256), 2)
    drawn, level = drawn_signs(256), level_signs(_moments(seen)[None])[0]
    before, now = (np.abs(unseen * signs @ hadamard(256)).max(axis=1) for signs in (drawn, level))
    assert np.square(now).mean() < 0.95 * np.square(before).mean()


def test_blocks_do_not_depend_on_each_other() -> None:
    moments = np.stack([_moments(_block_rows(64, seed)) for seed in range(2)])
    changed = np.stack([moments[0], 3 * np.eye(64, dtype=np.float32)])
    np.testing.assert_array_equal(level_signs(moments)[0], level_signs(changed)[0])


def test_inputs_that_no_text_has_shown_keep_the_signs_that_were_drawn() -> None:
    silent = np.zeros((2, 32, 32), np.float32)
    np.testing.assert_array_equal(level_signs(silent).reshape(-1), drawn_signs(64))


def _block_rows(block: int, seed: int = 0) -> Float32Array:
    """Of which few numbers decide, as those of trained models."""
    rng = np.random.default_rng(seed)
    rank = max(1, block // 16)
    together = rng.standard_normal((400, rank)) @ rng.standard_normal((rank, block))
    return (together + 0.3 * rng.standard_normal((400, block))).astype(np.float32)


def _moments(rows: Float32Array) -> Float32Array:
    return rows.T @ rows


def _unevenness(rows: Float32Array, block: int) -> float:
    """How far mean squares of rotated inputs are from their mean."""
    squares = np.square(rows @ hadamard(block)).mean(axis=0)
    return float(squares.std() / squares.mean())
