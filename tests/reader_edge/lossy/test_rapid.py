"""RAPID's formula, which a study compares with views: what it moves, and that no shift is the whole prompt's answer."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.lossy.rapid import Shifted, ShiftedTarget
from reader_edge_runtime import EngineConfig, GenerationConfig
from reader_edge_runtime.lossy.lossy_engine import LossyEngine
from reader_edge_runtime.lossy.views.views_target import ViewsTarget
from tests.fake_target import FakeTarget, make_manifest

NO_PROBES = EngineConfig(is_calibrated=False)


def test_tokens_move_by_the_difference_of_both_views_probabilities() -> None:
    target = ShiftedTarget(FakeTarget(make_manifest(3)), 0.5, 10)
    whole, retrieved = np.log(np.array([[[0.5, 0.2, 0.3]], [[0.1, 0.89, 0.01]]], np.float32))[:, None]
    moved = target.mix(whole, retrieved) - whole
    np.testing.assert_allclose(moved, [[[-4, 6.9, 0]]], rtol=1e-4)  # the last has too small a share to be moved


def test_without_a_shift_the_whole_prompt_answers_and_with_one_it_need_not(demo_folder: Path) -> None:
    prompt, config = "tar and zip, " * 40 + "# tar", GenerationConfig(24, ignores_eos=True)
    shifted = {
        shift: LossyEngine.load(demo_folder, NO_PROBES, strength=Shifted(64, shift=shift)).generate(prompt, config)
        for shift in (0.0, 50.0)
    }
    assert shifted[0.0].given_up["num_changed"] == 0
    assert shifted[50.0].given_up["num_changed"] != 0


def test_views_keep_their_own_mixture() -> None:
    whole, retrieved = np.zeros((2, 1, 1, 3), np.float32) + np.array([1, 3], np.float32)[:, None, None, None]
    assert ViewsTarget(FakeTarget(make_manifest(3)), 0.25).mix(whole, retrieved) == pytest.approx(
        np.full((1, 1, 3), 1.5)
    )
