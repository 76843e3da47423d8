"""Pass times: measured where they were, corrected by what passes take; trees of a batch get the nodes worth most."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.decoding.planning.pass_time_model import PassTimeModel
from reader_edge_runtime.decoding.planning.tree_widths import best_widths, equal_width, time_at
from reader_edge_runtime.measuring.pass_cost import PassCost, bounded

WIDTHS = (1, 2, 4, 8, 16)


def measured(batch_size: int = 1) -> PassTimeModel:
    """10 ms a pass and 1 ms for each further node, twice that at ten times the length."""
    row = np.array([0.01 + 0.001 * (width - 1) for width in WIDTHS])
    times = PassTimeModel(max_width=16)
    times.take(PassCost(batch_size, (10, 1000), WIDTHS, np.stack([row, 2 * row])))
    return times


def test_times_grow_with_width_length_and_batch() -> None:
    times = measured()
    short, long = times.seconds([10]), times.seconds([1000])
    assert short[0] == np.inf
    assert short[4] == pytest.approx(0.013, rel=0.1)
    assert short[3] == pytest.approx((short[2] + short[4]) / 2)
    assert long[4] == pytest.approx(2 * short[4], rel=0.15)
    assert short[1] < times.seconds([10] * 4)[1] < 4 * short[1]
    assert times.is_measured


def test_how_fast_prompts_are_read_is_known_where_wide_passes_were_measured() -> None:
    assert 150 < measured().prompt_tokens_per_s() < 320  # 16 nodes in 50 ms behind 1000 tokens, and in more behind 2048
    assert PassTimeModel(max_width=16).prompt_tokens_per_s() == 0
    narrow = PassTimeModel(max_width=1)
    narrow.take(PassCost(1, (10,), (1,), np.array([[0.01]])))
    assert narrow.prompt_tokens_per_s() == 0


def test_a_batch_takes_the_products_of_as_many_nodes_of_one_text_and_each_texts_attention() -> None:
    times = measured()
    for past in (10, 1000):
        one, four = times.seconds([past]), times.seconds([past] * 4)
        short = [0.01 + 0.001 * (width - 1) for width in range(1, 17)]
        attention_s = [each - product_s for each, product_s in zip(one[1:], short, strict=True)]
        assert len(four) == 1 + 16
        assert four[2] == pytest.approx(short[7] + 4 * attention_s[1])
        assert four[4] == pytest.approx(short[15] + 4 * attention_s[3])
        # Beyond what was measured products grow as the last nodes' did.
        assert four[8] == pytest.approx(short[15] + 16 * (short[15] - short[14]) + 4 * attention_s[7])
    assert len(times.seconds([10] * 16)) == 1 + 4  # no more than 64 nodes are planned
    assert len(times.seconds([10] * 100)) == 1 + 1


def test_what_a_text_adds_to_a_pass_is_taken_for_each_one_but_the_first() -> None:
    row = np.array([0.01 + 0.001 * (width - 1) for width in WIDTHS])
    times, with_texts = PassTimeModel(16), PassTimeModel(16)
    times.take(PassCost(1, (10,), WIDTHS, row[None]))
    with_texts.take(PassCost(1, (10,), WIDTHS, row[None], text_s=(0.007, 0.0)))
    added = [
        more - few for few, more in zip(times.seconds([10] * 3)[1:], with_texts.seconds([10] * 3)[1:], strict=True)
    ]
    assert added[0] == pytest.approx(0.014)
    assert added[1] == pytest.approx(0.012)
    assert added[7:] == pytest.approx([0.0] * 9)
    assert with_texts.seconds([10]) == times.seconds([10])


@pytest.mark.parametrize(("share", "widths"), [(0.0, [5, 1, 1, 1]), (0.5, [4, 2, 1, 1]), (1.0, [3, 1, 1, 1])])
def test_trees_of_unequal_width_teach_what_equal_ones_that_take_as_long_would(share: float, widths: list[int]) -> None:
    row = np.array([0.01, 0.012, 0.016, 0.02, 0.03])
    times = PassTimeModel(WIDTHS[-1])
    times.take(PassCost(4, (10,), WIDTHS, row[None], padding_share=share))
    assert times.padding_share == share
    before = times.seconds([10] * 4)
    expected = time_at(before, equal_width(sum(widths), max(widths), 4, share))
    for _ in range(50):
        times.learn(widths, [10] * 4, 2 * expected)
    after = times.seconds([10] * 4)
    assert time_at(after, equal_width(sum(widths), max(widths), 4, share)) == pytest.approx(2 * expected, rel=0.02)


def test_passes_of_one_batch_size_teach_those_that_are_most_like_it() -> None:
    times = measured()
    before = {size: times.seconds([10] * size)[2] for size in (1, 2, 12)}
    taken = times.seconds([10] * 14)[2]
    for _ in range(60):
        times.learn([2] * 14, [10] * 14, 2 * taken)
    assert times.seconds([10] * 12)[2] == pytest.approx(2 * before[12], rel=0.05)
    assert [times.seconds([10] * size)[2] for size in (1, 2)] == pytest.approx([before[1], before[2]], rel=0.01)


def test_what_a_width_takes_corrects_its_neighbours_and_all_where_the_machine_is_slow() -> None:
    times = measured()
    before = times.seconds([10])
    for _ in range(60):
        times.learn([8], [10], 2 * before[8])
        times.learn([1], [10], before[1])
    after = times.seconds([10])
    assert after[8] == pytest.approx(2 * before[8], rel=0.15)
    assert after[6] == pytest.approx(2 * before[6], rel=0.15)
    assert after[1] == pytest.approx(before[1], rel=0.15)
    times = measured()
    before = times.seconds([10])
    for _ in range(60):
        times.learn([1], [10], 3 * before[1])
    after = times.seconds([10])
    assert after[1] == pytest.approx(3 * before[1], rel=0.05)
    assert after[16] == pytest.approx(3 * before[16], rel=0.05)


def test_a_wrong_shape_is_forgotten_and_an_outlier_moves_little() -> None:
    times = measured()
    before = times.seconds([10])
    for _ in range(30):
        times.learn([8], [10], 2 * before[8])
    for _ in range(2000):
        times.learn([1], [10], before[1])
    assert times.seconds([10])[8] == pytest.approx(before[8], rel=0.05)
    times = measured()
    before = times.seconds([10])
    for _ in range(30):
        times.learn([4], [10], before[4])
    times.learn([4], [10], 100 * before[4])
    assert times.seconds([10])[4] < 1.1 * before[4]


def test_neighbours_bound_what_was_measured_and_nothing_corrects_what_was_not() -> None:
    times = PassTimeModel(max_width=4)
    before = times.seconds([10] * 2)
    times.learn([1] * 2, [10] * 2, 5.0)
    assert times.seconds([10] * 2) == before
    assert before[1] == 1
    assert before[1:] == sorted(before[1:])
    noisy = np.array([9.0, 2.0, 50.0, 4.0, 60.0])  # of 1, 2, 4, 8 and 16 nodes
    assert bounded(noisy, WIDTHS).tolist() == [2.0, 2.0, 4.0, 4.0, 8.0]
    assert PassCost(1, (10,), WIDTHS, noisy[None]).bounded().seconds.tolist() == [[2.0, 2.0, 4.0, 4.0, 8.0]]


def test_a_curve_that_passes_clearly_outrun_is_reported_once() -> None:
    times = measured()
    before = times.seconds([10])
    for _ in range(60):
        times.learn([8], [10], 0.9 * before[8])
    assert not times.take_outrun()
    for _ in range(60):
        times.learn([8], [10], 0.6 * before[8])
    assert times.take_outrun()
    assert not times.take_outrun()


def test_neither_faster_batches_nor_slower_passes_condemn_a_curve() -> None:
    times = measured()
    for _ in range(60):
        times.learn([1] * 8, [10] * 8, 0.3 * times.seconds([10] * 8)[1])
    assert not times.take_outrun()
    times = measured()
    before = times.seconds([10])
    for _ in range(60):
        times.learn([8], [10], 2 * before[8])
        times.learn([1], [10], 1.5 * before[1])
    assert not times.take_outrun()


PASTS = (64, 1024, 4096)


def from_memory(past: float) -> float:
    """Beyond a core's caches each row takes longer to read."""
    return past + 1.5 * max(0.0, past - 4096)


def windowed(past: float) -> float:
    return min(past, 4096)


# By how many rows reading takes as long, and attending to what was read.
Rows = Callable[[float], float]
SEEN: dict[str, tuple[Rows, Rows]] = {
    "all": (float, float),
    "all, from memory": (from_memory, float),
    "a window": (windowed, windowed),
}


@pytest.mark.parametrize("name", SEEN)
def test_times_behind_long_texts_are_those_of_passes_there_and_leave_short_ones_alone(name: str) -> None:
    """Measured up to 4,096, within a percent or so; then 48 steps of other widths behind 8,000 tokens, and 16,000."""
    rng, (read, attended), widths = np.random.default_rng(0), SEEN[name], (1, 2, 4, 8, 16)

    def true(past: int, width: int) -> float:
        return 0.045 + 0.01 * max(0, width - 4) + 1.1e-6 * read(past) + 0.95e-6 * width * attended(past)

    def learn(past: int, width: int) -> None:
        times.learn([width], [past], true(past, width) * rng.normal(1, 0.03))

    def errors(past: int) -> Float64Array:
        known = times.seconds([past])
        return np.array([abs(known[width] / true(past, width) - 1) for width in widths])

    measured = np.array([[true(past, width) for width in widths] for past in PASTS])
    times = PassTimeModel(16)
    times.take(PassCost(1, PASTS, widths, measured * rng.normal(1, 0.01, measured.shape)))
    for width in rng.choice([1, 4, 8], 100).tolist():
        learn(100, width)
    assert (errors(16_000).max() < 0.1) == (name == "all")  # a line through what was measured tells of no other
    for past in (8_000, 16_000):
        for step in range(48):
            learn(past + step, (1, 8, 4, 8)[step % 4])
        assert errors(past).max() < 0.1
    assert errors(100).max() < 0.1


def test_a_depth_that_no_pass_was_at_takes_what_the_one_before_shows() -> None:
    row = np.array([0.01 + 0.001 * width for width in WIDTHS])
    times = PassTimeModel(16)
    times.take(PassCost(1, PASTS, WIDTHS, np.stack([row, 2 * row, 5 * row])))
    taken = {past: times.seconds([past])[8] for past in (6000, 20_000)}
    for _ in range(60):
        times.learn([8], [6000], 0.6 * taken[6000])
    assert times.seconds([6000])[8] == pytest.approx(0.6 * taken[6000], rel=0.05)
    assert times.seconds([20_000])[8] == pytest.approx(0.6 * taken[20_000], rel=0.1)


def test_each_text_of_a_pass_takes_the_attention_that_its_own_past_does_where_layers_have_a_window() -> None:
    """Behind the mean of their pasts, more than half of what the window's rows take would be counted twice."""

    def attention(past: int) -> float:
        return 1e-6 * min(past, 1024)

    times = PassTimeModel(16)
    seconds = [[0.01 + 0.001 * n + attention(past) * n for n in WIDTHS] for past in PASTS]
    times.take(PassCost(1, PASTS, WIDTHS, np.array(seconds)))
    short, long = (times.seconds([past])[4] for past in (64, 8000))
    assert times.seconds([64, 8000])[2] == pytest.approx(short + 2 * attention(1024 - 64), rel=0.01)
    assert times.seconds([8000, 8000])[2] == pytest.approx(long, rel=0.01)
    less, more = times.further_seconds([64, 8000])
    assert more == pytest.approx(-less)
    assert more == pytest.approx(attention(1024 - 64) / 2, rel=0.05)
    assert times.further_seconds([8000]) == [0.0]


def test_passes_of_unlike_texts_teach_each_depth_what_is_its_own() -> None:
    row = np.array([0.01 + 0.001 * width for width in WIDTHS])
    times = PassTimeModel(16)
    times.take(PassCost(1, PASTS, WIDTHS, np.stack([row, 1.1 * row, 4 * row])))
    short, long, both = (times.seconds(pasts)[4] for pasts in ([100], [4000], [100, 4000]))
    for _ in range(100):
        times.learn([4], [100], short)
        times.learn([4, 4], [100, 4000], both + 0.5 * (long - short))
    assert times.seconds([100])[4] == pytest.approx(short, rel=0.05)
    assert times.seconds([4000])[4] == pytest.approx(long + 0.5 * (long - short), rel=0.15)


MARGIN, MARGIN_OF_UNEQUAL = 1.02, 1.1


falling = st.lists(st.floats(0, 1), min_size=0, max_size=4).map(lambda gains: sorted(gains, reverse=True))
rising = st.lists(st.floats(0, 0.02), min_size=4, max_size=4).map(
    lambda steps: [float("inf"), *itertools.accumulate(steps, initial=0.01)]
)


def rate(widths: tuple[int, ...], gains: list[list[float]], times: list[float], share: float) -> float:
    width = equal_width(sum(widths), max(widths), len(gains), share)
    expected = len(gains) + sum(sum(each[: width - 1]) for each, width in zip(gains, widths, strict=True))
    return expected / (time_at(times, width) + 0.001)


@given(st.lists(falling, min_size=1, max_size=3), rising, st.floats(0, 1))
def test_no_other_trees_promise_more(gains: list[list[float]], times: list[float], share: float) -> None:
    chosen = best_widths(gains, times, share, 0.001, [0.0] * len(gains))
    best = max(
        rate(widths, gains, times, share) for widths in itertools.product(*(range(1, 2 + len(g)) for g in gains))
    )
    plain = rate((1,) * len(gains), gains, times, share)
    if max(chosen) == 1:
        assert best <= MARGIN * plain * (1 + 1e-9)
        return
    cut = tuple(min(width, 1 + len(each)) for width, each in zip(chosen, gains, strict=True))
    is_equal = len(set(chosen)) == 1
    assert rate(cut, gains, times, share) >= best / (MARGIN_OF_UNEQUAL if is_equal else 1) * (1 - 1e-9)


def test_of_drafts_as_good_the_one_whose_nodes_take_less_gets_more() -> None:
    times = [float("inf"), *(0.02 + 0.01 * n for n in range(1, 17))]
    gains = [[0.7**depth for depth in range(1, 16)]] * 2
    alike = best_widths(gains, times, 0.0, 0.0, [0.0, 0.0])
    long, short = best_widths(gains, times, 0.0, 0.0, [0.004, -0.004])
    assert alike[0] == alike[1]
    assert long < alike[0] < short


def test_a_pass_takes_what_equal_trees_of_its_mean_width_and_padding_would() -> None:
    times = [float("inf"), 0.010, 0.011]
    widths = best_widths([[0.9] * 7, [0.01]] + [[0.01]] * 14, times, 0.05, 0.0, [0.0] * 16)
    assert widths[0] == 8
    assert best_widths([[0.9] * 7] * 16, times, 0.05, 0.0, [0.0] * 16) != [8] * 16
    assert equal_width(8, 5, 4, 0.0) == 2
    assert equal_width(8, 5, 4, 1.0) == 5
    assert equal_width(8, 5, 4, 0.5) == 3.5
    assert time_at([float("inf"), 1.0, 3.0], 1.5) == 2.0
    assert time_at([float("inf"), 1.0, 3.0], 2) == 3.0
