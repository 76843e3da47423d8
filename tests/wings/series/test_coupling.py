"""Couplings of draft and model, and how long drafts are."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from reader_edge_runtime.arrays import Float64Array
from reader_edge_series.coupling import accepted, log_ratio, replaced
from reader_edge_series.draft_length import DraftLength, FixedCosts
from reader_edge_series.patch_distribution import Gaussian
from tests.wings.series.series_target import same_law

NUM = 20_000


def _gaussian(mean: list[float], scale: list[float]) -> Gaussian:
    return Gaussian(np.tile(mean, (NUM, 1)), np.tile(scale, (NUM, 1)))


BOUND = _gaussian([0.3, -0.2, 0.5], [1.0, 0.7, 1.2])
DRAFTS = {
    "equal": _gaussian([-0.2, 0.2, 0.1], [1.0, 0.7, 1.2]),
    "wider": _gaussian([0.0, 0.0, 0.2], [1.4, 0.9, 1.3]),
    "narrower": _gaussian([0.2, -0.1, 0.4], [0.8, 0.6, 1.0]),
    "mixed": _gaussian([0.5, -0.3, 0.0], [1.3, 0.5, 1.2]),
}


def _coupled(draft: Gaussian, random: np.random.Generator, is_published: bool = False) -> tuple[Float64Array, float]:
    """Draws for the model, and the share of drafts that counted."""
    patches = draft.drawn(random.standard_normal(draft.mean.shape))
    failed = ~accepted(BOUND, draft, patches, random)
    rows = BOUND.where(failed), draft.where(failed), patches[failed]
    # As published, what comes in a draft's place is a second draw from the model.
    second = rows[0].drawn(random.standard_normal(rows[2].shape))
    patches[failed] = second if is_published else replaced(*rows, random)
    return patches, 1 - failed.mean()


@pytest.mark.parametrize("name", DRAFTS)
def test_coupled_draws_have_the_law_of_the_model(name: str) -> None:
    random = np.random.default_rng(1)
    coupled, _ = _coupled(DRAFTS[name], random)
    plain = BOUND.drawn(random.standard_normal(coupled.shape))
    assert same_law(coupled, plain)


@pytest.mark.parametrize("name", DRAFTS)
def test_the_published_rule_has_another_law(name: str) -> None:
    random = np.random.default_rng(1)
    drawn, _ = _coupled(DRAFTS[name], random, is_published=True)
    plain = BOUND.drawn(random.standard_normal(drawn.shape))
    assert not same_law(drawn, plain)


def test_equal_deviations_are_accepted_as_often_as_the_closed_form_says() -> None:
    draft = DRAFTS["equal"]
    apart = float(np.linalg.norm(((BOUND.mean - draft.mean) / BOUND.scale)[0]))
    _, share = _coupled(draft, np.random.default_rng(2))
    assert share == pytest.approx(math.erfc(apart / 2 / math.sqrt(2)), abs=0.01)  # 2 Phi(-apart / 2)


def test_one_value_of_unequal_deviations_is_accepted_as_often_as_the_closed_form_says() -> None:
    bound, draft = (Gaussian(np.zeros((NUM, 1)), np.full((NUM, 1), scale)) for scale in (1.0, 2.0))
    random = np.random.default_rng(3)
    patches = draft.drawn(random.standard_normal((NUM, 1)))
    share = accepted(bound, draft, patches, random).mean()
    crossing = math.sqrt(2 * math.log(2) / (1 - 1 / 4))  # where the densities are the same
    inside = math.erf(crossing / 2 / math.sqrt(2)), math.erf(crossing / math.sqrt(2))
    assert share == pytest.approx(inside[0] + 1 - inside[1], abs=0.01)


def test_a_draft_from_the_very_law_always_counts() -> None:
    random = np.random.default_rng(4)
    patches = BOUND.drawn(random.standard_normal(BOUND.mean.shape))
    assert accepted(BOUND, BOUND, patches, random).all()
    assert not log_ratio(BOUND, BOUND, patches).any()


def test_far_drafts_are_replaced_without_an_overflow() -> None:
    random = np.random.default_rng(5)
    draft = Gaussian(BOUND.mean + 1e3, BOUND.scale * 1e-3)
    patches = draft.drawn(random.standard_normal(draft.mean.shape))
    assert not accepted(BOUND, draft, patches, random).any()
    values = replaced(BOUND, draft, patches, random)
    assert np.abs(values - BOUND.mean).max() < 10


LEFT = 60  # patches to come
CHANCES = (0.38, 0.6, 0.6)  # of drafts that are accepted, at each depth


def _settle(length: DraftLength, num_drafts: int, num_accepted: int, seconds: float, num_paths: int = 2) -> None:
    length.settle(num_drafts, np.full(num_paths, min(num_accepted, num_drafts)), seconds)


def _after(seconds: Sequence[float], depth: int, num_steps: int = 120) -> list[int]:
    """Lengths that were chosen: drafts beyond `depth` are never accepted, and steps take so long."""
    length, chosen = DraftLength(3, 2), []
    for _ in range(num_steps):
        chosen.append(length.choose(LEFT))
        _settle(length, chosen[-1], depth, seconds[chosen[-1]])
    return chosen


def _known(num_paths: int, seconds: float) -> DraftLength:
    """Steps with a draft take so long, those without 1, and three drafts in ten are accepted."""
    length = DraftLength(1, num_paths)
    for _ in range(40):
        length.settle(1, np.array([1] * 3 + [0] * 7), seconds)
        _settle(length, 0, 0, 1.0)
    length.choose(12)  # may be a try that is due
    length.begin()
    return length


def _forecasts(
    seed: int, seconds: Sequence[float], chances: Sequence[float] = CHANCES, costs: FixedCosts | None = None
) -> tuple[float, list[int]]:
    """How much sooner 40 forecasts of 42 patches of a path end than undrafted, and drafts of each.

    Steps vary by a twentieth, and one in fifty is interrupted.
    """
    random, length, spent, drafted = np.random.default_rng(seed), DraftLength(3, 1, costs), 0.0, []
    for _ in range(40):
        length.begin()
        num_left, num_drafted = 42, 0
        while num_left > 0:
            num_drafts = length.choose(num_left)
            accepted = 0
            while accepted < num_drafts and random.random() < chances[accepted]:
                accepted += 1
            noise = (1 + 0.05 * random.standard_normal()) * (5 if random.random() < 0.02 else 1)
            _settle(length, num_drafts, accepted, seconds[num_drafts] * noise, 1)
            spent += seconds[num_drafts]
            num_left -= accepted + 1
            num_drafted += num_drafts
        drafted.append(num_drafted)
    return 40 * 42 * seconds[0] / spent, drafted


@pytest.mark.parametrize(("depth", "best"), [(3, 3), (2, 2), (1, 1), (0, 0)])
def test_what_brings_most_is_chosen(depth: int, best: int) -> None:
    chosen = _after([1.0, 1.1, 1.2, 1.3], depth)
    assert chosen[:8] == [0] * 4 + [1] * 4
    assert chosen[-40:].count(best) >= 32


def test_dear_drafts_are_left_alone_though_they_are_right() -> None:
    chosen = _after([1.0, 2.5, 4.0, 5.0], 3, 400)
    assert chosen[:12] == [0] * 4 + [1] * 4 + [0] * 4
    assert chosen.count(0) > 380


def test_no_more_are_drafted_than_there_are_patches_to_come() -> None:
    length = _known(1, 1.01)
    assert (length.choose(2), length.choose(1)) == (1, 0)
    assert DraftLength(0, 1).choose(5) == 0


def test_an_interrupted_step_does_not_decide() -> None:
    length = DraftLength(1, 1)
    for chosen in (0, 1) * 5:
        _settle(length, chosen, chosen, 1.0 + 0.1 * chosen)
    _settle(length, 1, 1, 600.0)
    _settle(length, 0, 0, 1.0)
    assert length.choose(LEFT) == 1


def test_what_drafts_cost_is_soon_seen_where_the_load_changes() -> None:
    """First steps without drafts were slow because of others."""
    length, chosen = DraftLength(1, 1), []
    for number in range(200):
        chosen.append(length.choose(LEFT))
        _settle(length, chosen[-1], 0, 5.0 if number < 5 else 1.0 + chosen[-1], 1)
    assert sum(chosen) < 80
    assert sum(chosen[-40:]) <= 4


@pytest.mark.parametrize(("num_paths", "num_left", "num_drafts"), [(1, 12, 1), (64, 12, 0), (64, 200, 1)])
def test_the_slowest_of_many_paths_decides(num_paths: int, num_left: int, num_drafts: int) -> None:
    assert _known(num_paths, 1.05).choose(num_left) == num_drafts


def test_drafts_that_take_long_to_begin_are_left_alone() -> None:
    length = _known(1, 1.1)
    length.begun(5.0)
    assert length.choose(12, is_begun=False) == 0
    length.begin()
    assert length.choose(12) == 1
    length.begin()
    assert length.choose(100, is_begun=False) == 1


def test_nobody_stops_for_good_where_drafts_pay() -> None:
    """Two drafts in every step would gain 1.51, three 1.63."""
    found = [_forecasts(seed, [1.0, 1.03, 1.065, 1.07]) for seed in range(60)]
    assert np.mean([gain for gain, _ in found]) > 1.51
    assert all(sum(drafted[-10:]) for _, drafted in found)


def test_after_a_run_of_rejections_drafts_are_tried_again() -> None:
    length = DraftLength(3, 1)
    for num_drafts in (0, 1, 2, 3) * 40:
        _settle(length, num_drafts, 0, 1.0 + 0.1 * num_drafts, 1)
    chosen = []
    for _ in range(1500):
        chosen.append(length.choose(LEFT))
        _settle(length, chosen[-1], 3, 1.0 + 0.1 * chosen[-1], 1)
    assert chosen[:40].count(0) >= 36
    assert chosen[-100:].count(3) > 80


@pytest.mark.parametrize(
    ("seconds", "chances"), [([1.0, 1.5, 2.0, 2.5], CHANCES), ([1.0, 1.1, 1.2, 1.3], (0.05, 0.05, 0.05))]
)
def test_useless_tries_take_a_small_share_of_time(seconds: Sequence[float], chances: Sequence[float]) -> None:
    found = [_forecasts(seed, seconds, chances) for seed in range(20)]
    assert min(gain for gain, _ in found) > 0.98
    assert min(sum(drafted[-20:]) for _, drafted in found) > 0


def test_by_fixed_costs_no_time_plays_a_part() -> None:
    slow, quick = (
        _forecasts(3, seconds, costs=FixedCosts(1, 1 << 14, 0.0))
        for seconds in ([1.0, 9.0, 9.0, 9.0], [1.0, 0.1, 0.1, 0.1])
    )
    assert slow[1] == quick[1]
    assert sum(slow[1]) > 0


def test_many_paths_small_models_and_dear_sources_cost_more() -> None:
    lone = FixedCosts(1, 1 << 14, 0.0)
    many, small, dear = FixedCosts(64, 1 << 14, 0.0), FixedCosts(1, 1 << 8, 0.0), FixedCosts(1, 1 << 14, 0.6)
    assert lone.of(0) == many.of(0) == small.of(0) == dear.of(0) == 1
    assert lone.of(1) < lone.of(2) < min(each.of(2) for each in (many, small, dear))
    assert lone.begin == 0 < dear.begin
