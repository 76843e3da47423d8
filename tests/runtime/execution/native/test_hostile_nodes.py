"""Native kernels of nodes that no export writes: an error or an answer, whatever their inputs and attributes are."""

import math
import random
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.blocks.blocks import unpack_blocks
from reader_edge_export.quantize.hadamard import hadamard
from tests.gguf_files import random_rows
from tests.runtime.execution.native.node_session import Input, node_session
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = needs_kernels

FLOAT, HALF, INT8, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8
INT64 = TensorProto.INT64
_STATES: list[int] = [INT64, INT64, FLOAT, FLOAT, INT64]  # parents, num_kept, state, pending, num_pending
# Types of the inputs, of the outputs, and attributes.
OPERATORS: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "SwiGLU": ([FLOAT], [FLOAT], {}),
    "RotaryHeads": ([FLOAT] * 3, [FLOAT] * 3, {"q_num_heads": 2, "kv_num_heads": 1}),
    "LowRankRows": ([FLOAT, FLOAT, INT64, FLOAT, INT64], [FLOAT], {"start": 0, "size": 128}),
    "LowRankRows16": ([FLOAT, FLOAT, INT64, HALF, INT64], [FLOAT], {"start": 0, "size": 128}),
    "SpreadRows": ([FLOAT] * 3, [FLOAT], {}),
    "CacheRows": ([FLOAT] * 4, [INT8] * 2, {}),
    "SpreadRowLinear": ([FLOAT, FLOAT, FLOAT, INT8, FLOAT], [FLOAT], {}),
    "SpreadRowLinear16": ([FLOAT, FLOAT, FLOAT, INT8, FLOAT], [FLOAT], {}),
    "SpreadBlockLinear": ([FLOAT, FLOAT, FLOAT, UINT8, INT8, FLOAT], [FLOAT], {}),
    "ExactAttention": ([FLOAT] * 4, [FLOAT], {"scale": 1.0}),
    "IntegerAttention": ([FLOAT] * 4, [FLOAT], {"scale": 1.0}),
    "ExactAttention16": ([FLOAT, HALF, HALF, FLOAT], [FLOAT], {"scale": 1.0}),
    "IntegerAttention16": ([FLOAT, HALF, HALF, FLOAT], [FLOAT], {"scale": 1.0}),
    "Int8CacheAttention": ([FLOAT, FLOAT, FLOAT, INT8, INT8, FLOAT], [FLOAT], {"scale": 1.0}),
    "IntegerAttentionSinks": ([FLOAT] * 5, [FLOAT], {"scale": 1.0}),
    "ExactAttention16Sinks": ([FLOAT, HALF, HALF, FLOAT, FLOAT], [FLOAT], {"scale": 1.0}),
    "Int8CacheAttentionSinks": ([FLOAT, FLOAT, FLOAT, INT8, INT8, FLOAT, FLOAT], [FLOAT], {"scale": 1.0}),
    "SpreadRowExperts": ([FLOAT, INT64, FLOAT, FLOAT, INT8, FLOAT], [FLOAT], {}),
    "SpreadRowExperts16": ([FLOAT, INT64, FLOAT, FLOAT, INT8, FLOAT], [FLOAT], {}),
    "SpreadBlockExperts": ([FLOAT, INT64, FLOAT, FLOAT, UINT8, INT8, FLOAT], [FLOAT], {}),
    "TreeConv": ([FLOAT, FLOAT, *_STATES], [FLOAT] * 2, {}),
    "TreeDelta": ([*[FLOAT] * 5, *_STATES], [FLOAT] * 3, {}),
    "TreeScan": ([*[FLOAT] * 4, *_STATES], [FLOAT] * 3, {}),
}
MAX_NUMBERS = 1 << 20  # of an input: more take time and tell nothing new
WRONG_ATTRIBUTES: list[Any] = [0, -1, 3, 2**40, 2**62, 1.5, float("nan"), "x", [1, 2]]
REFUSALS = (
    *(ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.InvalidGraph, ort_errors.NotImplemented),
    *(ort_errors.RuntimeException,),
)


def _fed(kind: type[np.generic], *sizes: int) -> Input:
    return Input(np.ones(sizes, kind), False)


def _kept(kind: type[np.generic], *sizes: int) -> Input:
    return Input(np.ones(sizes, kind), True)


def _block_inputs(block_type: BlockType) -> list[Input]:
    """Rows and a matrix of five outputs, in the blocks of one or two units."""
    num_inputs = max(64, block_type.unit_inputs)
    rows = random_rows(gguf.GGMLQuantizationType[block_type.name], (5, num_inputs), np.random.default_rng(0))
    matrix = unpack_blocks(block_type, rows)
    return [_fed(np.float32, 1, 3, num_inputs), *(Input(array, True) for array in matrix.arrays.values())]


def _expert_inputs(block_type: BlockType) -> list[Input]:
    """The same of two experts, for three rows."""
    rows, *matrix = _block_inputs(block_type)
    return [Input(rows.array[0], False), _SENT, *(Input(np.stack([array, array]), True) for array, _ in matrix)]


_SENT = Input(np.array([1, 0, 1]), False)
_ROWS = _fed(np.float32, 1, 3, 64)
_SPREAD = (_kept(np.float32, 64), Input(hadamard(32).astype(np.float32), True))
_SCALES = _kept(np.float32, 5)
_SENT_ROWS = (_fed(np.float32, 3, 64), _SENT, _kept(np.float32, 2, 64), _SPREAD[1])
_EXPERT_SCALES = _kept(np.float32, 2, 5)
_WEIGHT = (_kept(np.int8, 5, 64), _SCALES)
_BLOCKS = (_kept(np.uint8, 5, 2, 16), _kept(np.int8, 5, 2), _SCALES)
_QUERY, _MASK = _fed(np.float32, 1, 4, 3, 64), _fed(np.float32, 1, 1, 3, 6)
_FLOATS, _HALVES = [_fed(np.float32, 1, 2, 8, 64)] * 2, [_fed(np.float16, 1, 2, 8, 64)] * 2
_SINKS = _fed(np.float32, 4)
_NEW = _fed(np.float32, 1, 2, 3, 64)
_SCALED = {"scale": 1.0}
_TREE = [Input(np.array([[-1, 0, 0]]), False), Input(np.array([1]), False)]
_KEYS, _VALUES, _HEADS = _fed(np.float32, 1, 3, 2, 8), _fed(np.float32, 1, 3, 4, 16), _fed(np.float32, 1, 3, 4)
_STATE, _REPLAYED = _fed(np.float32, 1, 4, 8, 16), Input(np.array([1]), False)
# Nodes as exports write them: types of outputs, attributes, inputs.
VALID: dict[str, tuple[list[int], dict[str, Any], list[Input]]] = {
    "SwiGLU": ([FLOAT], {}, [_ROWS]),
    "RotaryHeads": (
        [FLOAT] * 3,
        {"q_num_heads": 2, "kv_num_heads": 1},
        [_fed(np.float32, 1, 3, 128), _fed(np.float32, 1, 3, 16), _fed(np.float32, 1, 3, 16)],
    ),
    "LowRankRows": (
        [FLOAT],
        {"start": 96, "size": 256},
        [
            *(_ROWS, _fed(np.float32, 1, 3, 5), Input(np.array([1]), False), _fed(np.float32, 2, 512)),
            Input(np.array([5]), True),
        ],
    ),
    "SpreadRows": ([FLOAT], {}, [_ROWS, *_SPREAD]),
    "CacheRows": ([INT8] * 2, {}, [_NEW, *_SPREAD, _NEW]),
    "HalfRows": ([HALF] * 2, {}, [_NEW, _NEW]),
    "SpreadRowLinear": ([FLOAT], {}, [_ROWS, *_SPREAD, *_WEIGHT]),
    "SpreadRowLinearBias": ([FLOAT], {}, [_ROWS, *_SPREAD, *_WEIGHT, _SCALES]),
    "SpreadRowLinear16": ([FLOAT], {}, [_ROWS, *_SPREAD, *_WEIGHT]),
    "SpreadRowLinear16Bias": ([FLOAT], {}, [_ROWS, *_SPREAD, *_WEIGHT, _SCALES]),
    "SpreadBlockLinear": ([FLOAT], {}, [_ROWS, *_SPREAD, *_BLOCKS]),
    "SpreadBlockLinearBias": ([FLOAT], {}, [_ROWS, *_SPREAD, *_BLOCKS, _SCALES]),
    "ExactAttention": ([FLOAT], _SCALED, [_QUERY, *_FLOATS, _MASK]),
    "IntegerAttention": ([FLOAT], _SCALED, [_QUERY, *_FLOATS, _MASK]),
    "ExactAttention16": ([FLOAT], _SCALED, [_QUERY, *_HALVES, _MASK]),
    "IntegerAttention16": ([FLOAT], _SCALED, [_QUERY, *_HALVES, _MASK]),
    "Int8CacheAttention": ([FLOAT], _SCALED, [_QUERY, *_SPREAD, *[_fed(np.int8, 1, 2, 8, 66)] * 2, _MASK]),
    "ExactAttentionSinks": ([FLOAT], _SCALED, [_QUERY, *_FLOATS, _MASK, _SINKS]),
    "IntegerAttentionSinks": ([FLOAT], _SCALED, [_QUERY, *_FLOATS, _MASK, _SINKS]),
    "ExactAttention16Sinks": ([FLOAT], _SCALED, [_QUERY, *_HALVES, _MASK, _SINKS]),
    "IntegerAttention16Sinks": ([FLOAT], _SCALED, [_QUERY, *_HALVES, _MASK, _SINKS]),
    "Int8CacheAttentionSinks": ([FLOAT], _SCALED, [_QUERY, *_SPREAD, *[_fed(np.int8, 1, 2, 8, 66)] * 2, _MASK, _SINKS]),
    "TreeConv": (
        [FLOAT] * 2,
        {},
        [_ROWS, _kept(np.float32, 64, 4), *_TREE, *[_fed(np.float32, 1, 3, 64)] * 2, _REPLAYED],
    ),
    "TreeDelta": (
        [FLOAT] * 3,
        {},
        [_KEYS, _KEYS, _VALUES, _HEADS, _HEADS, *_TREE, _STATE, _fed(np.float32, 1, 2, 88), _REPLAYED],
    ),
    "TreeScan": (
        [FLOAT] * 3,
        {},
        [_KEYS, _KEYS, _VALUES, _HEADS, *_TREE, _STATE, _fed(np.float32, 1, 2, 84), _REPLAYED],
    ),
    **dict.fromkeys(
        ("SpreadRowExperts", "SpreadRowExperts16"),
        ([FLOAT], {}, [*_SENT_ROWS, _kept(np.int8, 2, 5, 64), _EXPERT_SCALES]),
    ),
    "SpreadBlockExperts": (
        [FLOAT],
        {},
        [*_SENT_ROWS, _kept(np.uint8, 2, 5, 2, 16), _kept(np.int8, 2, 5, 2), _EXPERT_SCALES],
    ),
    **{f"{name}Experts": ([FLOAT], {}, _expert_inputs(block_type)) for name, block_type in BLOCK_TYPES.items()},
    **{f"{name}Linear": ([FLOAT], {}, _block_inputs(block_type)) for name, block_type in BLOCK_TYPES.items()},
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_node_that_no_export_writes_is_refused_or_computed(operator: str) -> None:
    draw = random.Random(operator)
    num_refused = 0
    for _ in range(50):
        try:
            _run(operator, draw)
        except REFUSALS:
            num_refused += 1
    assert num_refused > 10


@pytest.mark.parametrize("operator", VALID)
def test_a_node_with_one_thing_wrong_is_refused_or_computed(operator: str) -> None:
    output_types, attributes, inputs = VALID[operator]
    _run_node(operator, inputs, output_types, attributes)
    draw = random.Random(operator)
    num_refused = 0
    for _ in range(40):
        wrong: list[Input | None] = [*inputs]
        others = dict(attributes)
        if attributes and draw.random() < 0.2:
            others[draw.choice(list(attributes))] = draw.choice(WRONG_ATTRIBUTES)
        else:
            index = draw.randrange(len(inputs))
            wrong[index] = _spoilt(inputs[index], draw)
        try:
            _run_node(operator, wrong, output_types, others)
        except REFUSALS:
            num_refused += 1
    assert num_refused > 5


def test_a_refusal_names_what_is_wrong() -> None:
    output_types, _, inputs = VALID["ExactAttention"]
    with pytest.raises(REFUSALS, match="scale"):
        _run_node("ExactAttention", inputs, output_types, {})
    with pytest.raises(REFUSALS, match="scale is not a finite number"):
        _run_node("ExactAttention", inputs, output_types, {"scale": float("inf")})
    moving = [Input(each.array, False) for each in VALID["SpreadRowLinear"][2]]
    with pytest.raises(REFUSALS, match="an input that must be constant is not"):
        _run_node("SpreadRowLinear", moving, [FLOAT], {})


def _spoilt(given: Input, draw: random.Random) -> Input | None:
    """An input with one thing wrong; None: it is missing."""
    array, is_constant = given
    kind = draw.choice(["size", "size", "size", "axis", "rank", "type", "constant", "missing"])
    axis = draw.randrange(array.ndim)
    if kind == "size":
        size = draw.choice([0, 1, 2, array.shape[axis] - 1, array.shape[axis] + 1, 2 * array.shape[axis], 257])
        return Input(np.resize(array, (*array.shape[:axis], size, *array.shape[axis + 1 :])), is_constant)
    if kind == "axis":
        return Input(np.expand_dims(array, axis), is_constant)
    if kind == "rank":
        return Input(np.asarray(array.take(0, axis)), is_constant)
    if kind == "type":
        return Input(array.astype(draw.choice([np.float32, np.float16, np.int8, np.uint8, np.int64])), is_constant)
    return Input(array, not is_constant) if kind == "constant" else None


def _run(operator: str, draw: random.Random) -> None:
    input_types, output_types, attributes = OPERATORS[operator]
    wrong = {name: draw.choice([value, draw.choice(WRONG_ATTRIBUTES)]) for name, value in attributes.items()}
    kept = {name: value for name, value in wrong.items() if draw.random() > 0.1}
    _run_node(operator, _inputs(input_types, draw), output_types, kept)


def _run_node(
    operator: str, inputs: Sequence[Input | None], output_types: Sequence[int], attributes: dict[str, Any]
) -> None:
    """A graph of one node, made and run once."""
    session = node_session(operator, inputs, output_types, attributes)
    fed = {f"input_{i}": each.array for i, each in enumerate(inputs) if each is not None and not each.is_constant}
    session.run(None, fed)


def _inputs(types: list[int], draw: random.Random) -> list[Input | None]:
    """Inputs of whatever sizes; None for one that is missing."""
    inputs: list[Input | None] = []
    common = draw.choice([1, 16, 32, 64])  # sizes that agree now and then
    for i, kind in enumerate(types):
        is_missing = draw.random() <= 0.05
        sizes = [draw.choice([common, common, 0, 1, 2, 3, 33, 96]) for _ in range(draw.choice([0, 1, 2, 2, 3, 4, 4]))]
        if math.prod(sizes) > MAX_NUMBERS:
            sizes[draw.randrange(len(sizes))] = 1
        array = np.ones(sizes, helper.tensor_dtype_to_np_dtype(kind))
        inputs.append(None if is_missing else Input(array, i > 0 and draw.random() < 0.6))
    return inputs
