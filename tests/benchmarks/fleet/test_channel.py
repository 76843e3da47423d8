"""Gains of urban micro cells, and rates by Shannon's formula."""

import numpy as np
import pytest

from benchmarks.fleet.channel import hidden_loss_db, sight_chance, sight_loss_db
from benchmarks.fleet.scenario import Scenario, draw_fleet, rates_bit_s


def test_losses_are_those_of_the_standard() -> None:
    distance_m = np.array([100.0])
    length_m = np.hypot(100.0, 8.5)
    assert sight_loss_db(distance_m, 3.5)[0] == pytest.approx(32.4 + 21 * np.log10(length_m) + 20 * np.log10(3.5))
    assert hidden_loss_db(distance_m, 3.5)[0] == pytest.approx(22.4 + 35.3 * np.log10(length_m) + 21.3 * np.log10(3.5))
    assert sight_chance(np.array([10.0, 18.0])).tolist() == [1.0, 1.0]
    assert sight_chance(distance_m)[0] == pytest.approx(0.18 + 0.82 * np.exp(-100 / 36))


def test_loss_has_no_step_at_the_break_and_grows_faster_behind_it() -> None:
    break_m = 4 * 9.0 * 0.5 * 3.5e9 / 299_792_458
    before, at, behind = sight_loss_db(break_m * np.array([1 - 1e-9, 1 + 1e-9, 10.0]), 3.5)
    assert at == pytest.approx(before, abs=1e-6)
    assert behind - at == pytest.approx(40.0, abs=0.1)


def test_a_rate_is_shannons_over_a_servers_part_of_the_band() -> None:
    noise_dbm = -174 + 10 * np.log10(2.5e6)
    assert rates_bit_s(np.array([noise_dbm]), Scenario(1, 4))[0] == pytest.approx(2.5e6)  # as strong as noise: a bit
    fleet = draw_fleet(Scenario(30, 4), seed=1)
    assert (fleet.down_bit_s > fleet.up_bit_s).all()  # servers send louder
    assert fleet.user_dbm.min() >= 16
    assert fleet.user_dbm.max() <= 24


def test_a_seed_draws_the_same_fleet_and_another_one_another() -> None:
    fleets = [draw_fleet.__wrapped__(Scenario(5, 2), seed) for seed in (7, 7, 8)]  # not the kept ones
    assert np.array_equal(fleets[0].gains_db, fleets[1].gains_db)
    assert not np.array_equal(fleets[0].gains_db, fleets[2].gains_db)
