"""Types of kernel arguments. The machine code of an entry point is made for the dtypes and dimensions given here."""

from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int32Vector = Annotated[npt.NDArray[np.int32], 1]
Int64Vector = Annotated[npt.NDArray[np.int64], 1]
Float32Vector = Annotated[npt.NDArray[np.float32], 1]
UInt32Vector = Annotated[npt.NDArray[np.uint32], 1]

# With two dimensions.
Int32Table = Annotated[npt.NDArray[np.int32], 2]
Int64Table = Annotated[npt.NDArray[np.int64], 2]
Float32Table = Annotated[npt.NDArray[np.float32], 2]

# An integer or float whose width numba infers, which Python's types cannot express.
Number = Any


class Store(NamedTuple):
    """Counts over a text, see kernels/counts.py."""

    header: Int64Vector
    table: Int64Table
    rows: Int32Vector
    text: Int32Vector


class SuccessorRecords(NamedTuple):
    """Records of the target's logits, see kernels/successors.py."""

    after_token: Int32Table
    after_pair: Int32Table
