"""What the cache copies: for each token it grows slower than the batch, and nothing is copied for one request alone."""

import numpy as np
import pytest

from benchmarks.kv_upkeep import exponent, upkeep

CONTEXT, ANSWER = 192, 24


def test_rows_copied_for_each_token_grow_slower_than_the_batch() -> None:
    # A text that repeats itself, with changes, so that trees are drafted, accepted and refused.
    rng = np.random.default_rng(0)
    parts = [rng.integers(1, 500, 60) for _ in range(4)]
    text = [int(each) for _ in range(60) for each in parts[rng.integers(4)]]
    by_batch, by_cause = {}, {}
    for batch in (1, 2, 4, 8, 16):
        steps, num_tokens, rows, num_read = upkeep(text, CONTEXT, batch, ANSWER)
        assert steps < num_tokens
        by_batch[batch], by_cause[batch] = sum(rows.values()) / num_tokens, rows
        assert sum(rows.values()) < num_read
    assert by_batch[1] < 1
    assert by_cause[16]["swap"] > 0  # what ends changes places
    assert exponent({batch: each for batch, each in by_batch.items() if batch > 1}) < 1


def test_the_exponent_is_that_of_a_power() -> None:
    assert exponent({batch: 3 * batch**0.4 for batch in (2, 4, 8, 32)}) == pytest.approx(0.4)
