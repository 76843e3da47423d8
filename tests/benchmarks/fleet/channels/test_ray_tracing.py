"""Gains that are traced, and that no fleet is drawn with them where the ray tracer is missing."""

import sys
from importlib import util

import numpy as np
import pytest

from benchmarks.fleet.scenario import Scenario, draw_fleet

HAS_SIONNA = util.find_spec("sionna") is not None


@pytest.mark.skipif(HAS_SIONNA, reason="sionna-rt is installed")
def test_without_sionna_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="fleets need it: pip install 'reader-edge[fleet]'")
    pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")
    from benchmarks.fleet import __main__ as fleet

    monkeypatch.setattr(sys, "argv", ["fleet", "--channel", "sionna"])
    with pytest.raises(SystemExit):
        fleet.main()
    assert "sionna-rt, which is missing: pip install 'reader-edge[fleet-sionna]'" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_SIONNA, reason="rays need sionna-rt: pip install 'reader-edge[fleet-sionna]'")
def test_traced_gains_are_free_spaces_in_sight_and_less_behind_walls() -> None:
    from benchmarks.fleet.channels.ray_tracing import LEAST_DB

    fleet = draw_fleet(Scenario(12, 2, channel="sionna"), seed=0)
    assert fleet.gains_db.shape == (12, 2)
    assert fleet.gains_db.min() >= LEAST_DB
    assert fleet.gains_db.max() < -20 * np.log10(4 * np.pi * (10 - 1.5) * 3.5e9 / 299_792_458) + 6  # from right above
    assert fleet.gains_db.max() - fleet.gains_db.min() > 20  # some are in sight, and some are not
    draw_fleet.cache_clear()
    assert np.array_equal(draw_fleet(Scenario(12, 2, channel="sionna"), seed=0).gains_db, fleet.gains_db)


@pytest.mark.skipif(not HAS_SIONNA, reason="rays need sionna-rt: pip install 'reader-edge[fleet-sionna]'")
def test_all_stand_in_the_streets() -> None:
    import mitsuba
    from sionna import rt

    from benchmarks.fleet.channels.ray_tracing import places

    scene = rt.load_scene(rt.scene.simple_street_canyon)
    found = np.array(places(scene, 50, np.random.default_rng(0)))
    box = scene.mi_scene.bbox()
    assert found.shape == (50, 2)
    assert (found > np.array(box.min)[:2]).all()
    assert (found < np.array(box.max)[:2]).all()
    x, y = found.T.astype(np.float32)
    up = mitsuba.Ray3f(mitsuba.Point3f(x, y, np.ones_like(x)), mitsuba.Vector3f(0, 0, 1))
    assert not np.array(scene.mi_scene.ray_test(up)).any()  # nobody has a roof above
