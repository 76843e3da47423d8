"""The inputs of a block rounded one after the other, as machine code: a call for each would wait for Python's lock."""

import numpy as np
from numba import njit

from reader_edge_runtime.arrays import Float32Array, Int8Array

_TILE = 256  # outputs whose block stays in a core's nearest cache

_SIGNATURE = "void(float32[:, ::1], float32[::1], float32[:, ::1], float32, float32, int8[:, ::1], float32[:, ::1])"


@njit(_SIGNATURE, nogil=True, cache=True, error_model="numpy")
def round_block(
    block: Float32Array,
    steps: Float32Array,
    factor: Float32Array,
    lowest: np.float32,
    highest: np.float32,
    integers: Int8Array,
    errors: Float32Array,
) -> None:
    """Round weights (k, J) by the steps (J,) of their outputs; what an input loses is made up for by those behind it.

    block: used up. factor: upper triangular (k, k), see `compensation`. integers (k, J): in [lowest, highest]. errors
    (k, J): of each input, over its own factor.
    """
    num_inputs, num_outputs = block.shape
    for start in range(0, num_outputs, _TILE):
        stop = min(start + _TILE, num_outputs)
        for k in range(num_inputs):
            inverse = np.float32(1) / factor[k, k]
            for j in range(start, stop):
                rounded = min(max(np.rint(block[k, j] / steps[j]), lowest), highest)
                integers[k, j] = np.int8(rounded)
                errors[k, j] = (block[k, j] - rounded * steps[j]) * inverse
            for i in range(k + 1, num_inputs):
                share = factor[k, i]
                for j in range(start, stop):
                    block[i, j] -= share * errors[k, j]
