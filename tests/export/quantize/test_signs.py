"""Signs of inputs: those of a block are alike once they are rotated, and so a row's largest number is smaller."""

import numpy as np
import pytest

from reader_edge_export.quantize.hadamard import drawn_signs, hadamard, level_signs
from reader_edge_runtime.arrays import Float32Array

SIZES = [1, 2, 16, 64, 256]


@pytest.mark.parametrize("block", SIZES)
def test_signs_are_ones_and_minus_ones_of_every_block(block: int) -> None:
    signs = level_signs(np.stack([_moments(_rows(block, seed)) for seed in range(3)]))
    assert signs.shape == (3, block)
    np.testing.assert_array_equal(np.abs(signs), 1)


@pytest.mark.parametrize("block", [64, 256])
def test_spread_inputs_that_go_together_are_alike(block: int) -> None:
    rows = _rows(block)
    drawn, level = drawn_signs(block), level_signs(_moments(rows)[None])[0]
    assert _unevenness(rows * level, block) < 0.7 * _unevenness(rows * drawn, block)


def test_rows_that_were_not_seen_have_a_smaller_largest_number() -> None:
    seen, unseen = np.split(_rows(256), 2)
    drawn, level = drawn_signs(256), level_signs(_moments(seen)[None])[0]
    before, now = (np.abs(unseen * signs @ hadamard(256)).max(axis=1) for signs in (drawn, level))
    assert np.square(now).mean() < 0.95 * np.square(before).mean()


def test_blocks_do_not_depend_on_each_other() -> None:
    moments = np.stack([_moments(_rows(64, seed)) for seed in range(2)])
    changed = np.stack([moments[0], 3 * np.eye(64, dtype=np.float32)])
    np.testing.assert_array_equal(level_signs(moments)[0], level_signs(changed)[0])


def test_inputs_that_no_text_has_shown_keep_the_signs_that_were_drawn() -> None:
    silent = np.zeros((2, 32, 32), np.float32)
    np.testing.assert_array_equal(level_signs(silent).reshape(-1), drawn_signs(64))


def _rows(block: int, seed: int = 0) -> Float32Array:
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
