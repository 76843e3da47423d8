"""Numbers that the definitions of operators and their native kernels share, and the C++ header made of them.

python -m reader_edge_export.onnx_graph.shared_constants > native/src/shared_constants.h
"""

import sys

STEPS = 127  # of a row's largest number, in one plane of int8
BASE = 256  # how often the first of two planes counts
STEPS_16 = STEPS * BASE + STEPS  # in two planes
ZERO_POINT = 128  # unsigned activations: ONNX Runtime's signed kernels are up to 20 times slower on x86
SMALLEST = 1e-30  # what is divided by it is a row of zeros

MAX_BLOCK = 256  # of inputs spread: each doubling takes a bit from those of rows that are to be summed exactly
BLOCK_INPUTS = 32  # of a 4-bit matrix, with a scale of their own
MAX_BLOCK_SCALE = 15  # of either sign, times -8 to 7

# Components of a head that are summed in one chain. ONNX Runtime cuts longer sums into blocks whose length hangs on the
# number of visible rows: 256 components summed one way up to 64 rows and another way beyond.
MAX_CHAIN = 128
VALUE_STEPS = 2047  # of a cache row's largest value
WEIGHT_STEPS = 16383  # of a query's largest softmax weight
BYTE_WEIGHT_STEPS = 32767  # the same over a cache of eight bits
LARGEST_HALF = 65504  # what is beyond it in a cache of fp16 becomes that

ROW_STEPS = STEPS * 64  # of 64 magnitudes of a row in a cache of eight bits
LEAST_EXPONENT = -100  # of a magnitude
MOST_EXPONENT = 100

_HEADER = """\
// Numbers that kernels share with the definitions of their operators, which shared_constants.py has.
// It writes this file: python -m reader_edge_export.onnx_graph.shared_constants > native/src/shared_constants.h
#pragma once

namespace reader_edge {{

{lines}

}}  // namespace reader_edge
"""


def header() -> str:
    """native/src/shared_constants.h: STEPS_16 is kSteps16 there."""
    numbers = {name: value for name, value in globals().items() if name.isupper() and not name.startswith("_")}
    lines = [
        f"constexpr {type(value).__name__} k{name.title().replace('_', '')} = {value};"
        for name, value in numbers.items()
    ]
    return _HEADER.format(lines="\n".join(lines))


if __name__ == "__main__":
    sys.stdout.write(header())
