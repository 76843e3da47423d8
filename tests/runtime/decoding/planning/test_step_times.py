"""Pass times: measured where they were, corrected by what passes take."""

import numpy as np
import pytest

from reader_edge_runtime.decoding.planning.pass_times import PassTimes
from reader_edge_runtime.decoding.planning.tree_widths import equal_width, time_at
from reader_edge_runtime.measuring.pass_cost import PassCost, bounded

WIDTHS = (1, 2, 4, 8, 16)


def measured(batch_size: int = 1) -> PassTimes:
    """10 ms a pass and 1 ms for each further node, twice that at ten times the length."""
    row = np.array([0.01 + 0.001 * (width - 1) for width in WIDTHS])
    times = PassTimes(max_width=16)
    times.add(PassCost(batch_size, (10, 1000), WIDTHS, np.stack([row, 2 * row])))
    return times


def test_times_grow_with_width_length_and_batch() -> None:
    times = measured()
    short, long = times.seconds(1, 10), times.seconds(1, 1000)
    assert short[0] == np.inf
    assert short[4] == pytest.approx(0.013, rel=0.1)
    assert short[3] == pytest.approx((short[2] + short[4]) / 2)
    assert long[4] == pytest.approx(2 * short[4], rel=0.15)
    assert short[1] < times.seconds(4, 10)[1] < 4 * short[1]
    assert times.has(1)
    assert not times.has(4)


def test_times_between_two_measured_batch_sizes_lie_between_theirs() -> None:
    times = measured()
    times.add(PassCost(16, (10,), (1, 2, 4), np.array([[0.02, 0.03, 0.05]])))
    one, four, sixteen = (times.seconds(size, 10) for size in (1, 4, 16))
    for width in (1, 2, 4):
        assert four[width] == pytest.approx((one[width] * sixteen[width]) ** 0.5)
    assert len(four) == 17  # wider trees of sixteen were not measured, and grow as the last ones did
    assert four[16] == pytest.approx((one[16] * 0.17) ** 0.5)
    assert times.seconds(32, 10)[1] == pytest.approx(sixteen[1] * 2**0.5)


@pytest.mark.parametrize(("share", "widths"), [(0.0, [5, 1, 1, 1]), (0.5, [4, 2, 1, 1]), (1.0, [3, 1, 1, 1])])
def test_trees_of_unequal_width_teach_what_equal_ones_that_take_as_long_would(share: float, widths: list[int]) -> None:
    row = np.array([0.01, 0.012, 0.016, 0.02, 0.03])
    times = PassTimes(WIDTHS[-1])
    times.add(PassCost(4, (10,), WIDTHS, row[None], padding_share=share))
    assert times.padding_share(4) == times.padding_share(3) == share
    before = times.seconds(4, 10)
    told = time_at(before, equal_width(sum(widths), max(widths), 4, share))
    for _ in range(50):
        times.learn(widths, 10, 2 * told)
    after = times.seconds(4, 10)
    assert time_at(after, equal_width(sum(widths), max(widths), 4, share)) == pytest.approx(2 * told, rel=0.02)


def test_passes_of_one_batch_size_teach_those_that_are_most_like_it() -> None:
    times = measured()
    times.add(PassCost(16, (10,), (1, 2, 4), np.array([[0.02, 0.03, 0.05]])))
    before = {size: times.seconds(size, 10)[4] for size in (1, 12)}
    for _ in range(60):
        times.learn([4] * 14, 10, 2 * times._curve(14, 10)[4])
    assert times.seconds(12, 10)[4] == pytest.approx(2 * before[12], rel=0.05)
    assert times.seconds(1, 10)[4] == before[1]


def test_what_a_width_takes_corrects_it_and_its_neighbours() -> None:
    times = measured()
    before = times.seconds(1, 10)
    for _ in range(60):
        times.learn([8] * 1, 10, 2 * before[8])
        times.learn([1] * 1, 10, before[1])
    after = times.seconds(1, 10)
    assert after[8] == pytest.approx(2 * before[8], rel=0.15)
    assert after[6] == pytest.approx(2 * before[6], rel=0.15)
    assert after[1] == pytest.approx(before[1], rel=0.15)


def test_a_slower_machine_slows_widths_that_were_not_seen() -> None:
    times = measured()
    before = times.seconds(1, 10)
    for _ in range(60):
        times.learn([1] * 1, 10, 3 * before[1])
    after = times.seconds(1, 10)
    assert after[1] == pytest.approx(3 * before[1], rel=0.05)
    assert after[16] == pytest.approx(3 * before[16], rel=0.05)


def test_a_wrong_shape_is_forgotten_when_only_plain_passes_come() -> None:
    times = measured()
    before = times.seconds(1, 10)
    for _ in range(30):
        times.learn([8] * 1, 10, 2 * before[8])
    for _ in range(2000):
        times.learn([1] * 1, 10, before[1])
    assert times.seconds(1, 10)[8] == pytest.approx(before[8], rel=0.05)


def test_one_outlier_moves_little() -> None:
    times = measured()
    before = times.seconds(1, 10)
    for _ in range(30):
        times.learn([4] * 1, 10, before[4])
    times.learn([4] * 1, 10, 100 * before[4])
    assert times.seconds(1, 10)[4] < 1.1 * before[4]


def test_without_a_measurement_nothing_is_corrected() -> None:
    times = PassTimes(max_width=4)
    before = times.seconds(2, 10)
    times.learn([1] * 2, 10, 5.0)
    assert times.seconds(2, 10) == before
    assert before[1] == 1
    assert before[1:] == sorted(before[1:])


def test_what_a_neighbour_added_is_bounded_by_other_widths() -> None:
    noisy = np.array([9.0, 2.0, 50.0, 4.0, 60.0])  # of 1, 2, 4, 8 and 16 nodes
    assert bounded(noisy, WIDTHS).tolist() == [2.0, 2.0, 4.0, 4.0, 8.0]
    assert PassCost(1, (10,), WIDTHS, noisy[None]).bounded().seconds.tolist() == [[2.0, 2.0, 4.0, 4.0, 8.0]]


def test_a_curve_that_passes_clearly_outrun_is_told_once() -> None:
    times = measured()
    before = times.seconds(1, 10)
    for _ in range(60):
        times.learn([8] * 1, 10, 0.9 * before[8])
    assert times.take_outrun() == []
    for _ in range(60):
        times.learn([8] * 1, 10, 0.6 * before[8])
    assert times.take_outrun() == [1]
    assert times.take_outrun() == []


def test_passes_slower_than_measured_do_not_condemn_a_curve() -> None:
    times = measured()
    before = times.seconds(1, 10)
    for _ in range(60):
        times.learn([8] * 1, 10, 2 * before[8])
        times.learn([1] * 1, 10, 1.5 * before[1])
    assert times.take_outrun() == []
