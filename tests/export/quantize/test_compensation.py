"""Rounding with errors made up for: on the inputs it was told of, outputs change less than by plain rounding."""

import numpy as np
import pytest
import torch

from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_export.quantize import compensation
from reader_edge_export.quantize.compensation import BLOCK, Compensation, for_parts_of_outputs, parts_of_outputs
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
def test_inputs_by_which_nothing_can_be_rounded_are_told_in_one_sentence(moment: float) -> None:
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
