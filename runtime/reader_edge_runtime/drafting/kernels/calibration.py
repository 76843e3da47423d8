"""Path values made true: what a path of some predicted value was in fact accepted, learned online.

Buckets of the predicted value in the log-odds domain; a value learns and reads two neighbouring buckets, by nearness.
"""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Float32Array, Number
from reader_edge_runtime.drafting.kernels.jit import small_part
from reader_edge_runtime.drafting.kernels.mixture import VALUE_BUCKETS, VALUE_HITS, VALUE_TRIALS, log_odds

_LOWEST = np.float32(-9)
_PER_UNIT = np.float32(2)
_MEMORY = np.float32(500)


@small_part
def _bucket(value: Number) -> Number:
    x = (log_odds(value) - _LOWEST) * _PER_UNIT
    return min(max(x, np.float32(0)), np.float32(VALUE_BUCKETS - 1.001))


@small_part
def calibrated(parameters: Float32Array, value: Number) -> Number:
    """The acceptance that paths of this predicted value have had."""
    x = _bucket(value)
    i = np.int64(x)
    near = x - np.float32(i)
    low = parameters[VALUE_HITS + i] / parameters[VALUE_TRIALS + i]
    high = parameters[VALUE_HITS + i + 1] / parameters[VALUE_TRIALS + i + 1]
    return min(value * (low + (high - low) * near), np.float32(1))


@small_part
def _learn_bucket(parameters: Float32Array, i: Number, value: Number, is_hit: Number, share: Number) -> None:
    parameters[VALUE_HITS + i] += share * is_hit
    parameters[VALUE_TRIALS + i] += share * value
    if parameters[VALUE_TRIALS + i] > _MEMORY * value:
        keep = np.float32(1) - share / _MEMORY
        parameters[VALUE_HITS + i] *= keep
        parameters[VALUE_TRIALS + i] *= keep


@small_part
def learn_value(parameters: Float32Array, value: Number, is_hit: Number) -> None:
    """Learn that a node of this predicted value was accepted (1) or not (0)."""
    x = _bucket(value)
    i = np.int64(x)
    near = x - np.float32(i)
    _learn_bucket(parameters, i, value, is_hit, np.float32(1) - near)
    _learn_bucket(parameters, i + 1, value, is_hit, near)
