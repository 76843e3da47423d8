"""Types of the kernels' arguments."""

from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

# A numba integer or float: its width follows from what it was computed from, which Python's types cannot say.
Number = Any

# after_token and after_pair of kernels/successors.py
Successors = tuple[Int32Array, Int32Array]
