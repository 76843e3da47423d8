"""Couplings keep the law of the model, accept as often as any coupling can, and the published rule does neither."""

import math

import numpy as np
import pytest

from reader_edge_runtime.arrays import Float64Array
from reader_edge_series.coupling import accepted, log_ratio, replaced
from reader_edge_series.patch_distribution import Gaussian
from tests.wings.series.laws import same_law

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
