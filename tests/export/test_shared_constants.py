"""Numbers that a package's definitions and the native kernels share are the same in both."""

import ast
import operator
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reader_edge_export import block_linear
from reader_edge_export.lowering import cache_rows, exact, exact_sums, int8_cache, kv_rows
from reader_edge_export.quantize import int8, portable, spread

NATIVE = Path(__file__).parents[2] / "native" / "src"
LIST = re.compile(r"^\s*(?:static )?constexpr [\w:]+ (k[A-Z]\w* = [^;]+);", re.MULTILINE)
ONE = re.compile(r"(k[A-Z]\w*) = ([^,]+)")
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Div: operator.truediv,
}

# By what C++ calls them: all the values that a name has there, in whichever file.
SHARED: dict[str, set[float]] = {
    "kSteps": {int8._MOST, portable._PLANE_STEPS[1]},
    "kSteps16": {portable._PLANE_STEPS[2]},
    "kBase": {portable._BASE},
    "kZeroPoint": {portable._ZERO_POINT},
    "kSmallestRow": {portable._SMALLEST},
    "kSmallest": {exact_sums._SMALLEST},
    "kMaxBlock": {spread.MAX_BLOCK},
    "kBlockInputs": {block_linear.BLOCK_INPUTS},
    "kMaxScale": {block_linear.MAX_BLOCK_SCALE},
    "kValueSteps": {exact._VALUE_STEPS},
    "kWeightSteps": {exact._WEIGHT_STEPS, int8_cache._WEIGHT_STEPS},
    "kRowSteps": {cache_rows.ROW_STEPS},
    "kLeastExponent": {float(np.log2(cache_rows._POWERS.min()))},
    "kMostExponent": {float(np.log2(cache_rows._POWERS.max()))},
    "kChain": {kv_rows._MAX_CHAIN},
}


@pytest.mark.parametrize("name", SHARED)
def test_python_and_cpp_mean_the_same_number(name: str) -> None:
    found = {
        _value(ast.parse(value.strip().replace("f", ""), mode="eval").body)
        for path in sorted(NATIVE.iterdir())
        for constants in LIST.findall(path.read_text(encoding="utf-8"))
        for each, value in ONE.findall(constants)
        if each == name
    }
    assert found == SHARED[name]


def _value(expression: ast.expr) -> float:
    """What sums, products and quotients of numbers come to."""
    match expression:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=kind, right=right):
            return float(OPERATORS[type(kind)](_value(left), _value(right)))
    raise ValueError(f"Not a number: {ast.unparse(expression)}")
