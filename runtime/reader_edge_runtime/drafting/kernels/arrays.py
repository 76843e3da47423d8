"""Types of kernel arguments."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

# An integer or float whose width numba infers, which Python's types cannot express.
Number = Any


class Store(NamedTuple):
    """Counts over a text, see kernels/counts.py."""

    header: Int64Array
    table: Int64Array
    rows: Int32Array
    text: Int32Array


class Successors(NamedTuple):
    """Records of the target's logits, see kernels/successors.py."""

    after_token: Int32Array
    after_pair: Int32Array
