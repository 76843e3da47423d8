"""Signs of inputs, such that all are alike in magnitude once a Walsh-Hadamard matrix has spread them.

A row is rounded in steps of its largest number. Inputs go together: with signs that are merely drawn, some of their
sums are larger than others in most rows, and the steps are theirs.
"""

import numpy as np

from reader_edge_runtime.arrays import Float32Array

_MAX_SWEEPS = 4  # hardly a sign changes after these


def drawn_signs(num_inputs: int) -> Float32Array:
    """Ones and minus ones (K,), the same every time: inputs that agree in sign would add up to one large sum."""
    return np.random.default_rng(0).choice(np.array([-1, 1], np.float32), num_inputs)


def level_signs(moments: Float32Array) -> Float32Array:
    """Second moments (n, b, b) of the inputs of n blocks -> signs (n, b).

    Row i of the matrix has the sign (-1)^|i & k| at input k, so the mean squares of a block's sums are the
    Walsh-Hadamard transform of a[m], the sum of the signed moments of k and k ^ m over all k. They are alike where a[m]
    is 0 for every m but 0. Signs are drawn, and each is flipped where that makes the sum of a[m]^2 smaller.
    """
    num_blocks, block, _ = moments.shape
    signs = drawn_signs(num_blocks * block).reshape(num_blocks, block)
    inputs = np.arange(block)
    signed = moments * signs[:, :, None] * signs[:, None, :]
    pairs = signed[:, inputs[:, None], inputs[:, None] ^ inputs]  # (n, k, m): the signed moment of k and k ^ m
    pairs[:, :, 0] = 0
    sums = pairs.sum(axis=1)
    squares = np.square(pairs).sum(axis=2)
    for _ in range(_MAX_SWEEPS):
        before = signs.copy()
        for k in inputs:
            gains = np.einsum("nm,nm->n", sums, pairs[:, k]) > 2 * squares[:, k]
            flipped = np.flatnonzero(gains)  # blocks whose input k takes the other sign
            sums[flipped] -= 4 * pairs[flipped, k]
            pairs[flipped, k] *= -1
            pairs[flipped[:, None], inputs, inputs ^ k] *= -1
            signs[flipped, k] *= -1
        if np.array_equal(signs, before):
            break
    return signs
