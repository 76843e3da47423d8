"""Products by the matrices of experts; mixtures of them, and what routes rows to them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes import common

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.package.graph_file import GraphFile
from tests.expert_matrices import FORMS, ExpertMatrices, random_experts
from tests.runtime.execution.native_operator import Build, operator_model

NUM_EXPERTS = 5


@pytest.mark.parametrize("form", FORMS)
def test_each_row_meets_its_own_expert_whatever_stands_beside_it(form: str) -> None:
    matrices = random_experts(form, NUM_EXPERTS, 24, 256)
    session = _session({"rows": ("R", 256), "experts": ("R",)}, _product(matrices))
    rng = np.random.default_rng(0)
    rows, experts = rng.standard_normal((17, 256), np.float32), rng.integers(0, NUM_EXPERTS - 1, 17)
    (whole,) = session.run(None, {"rows": rows, "experts": experts})
    expected = matrices.expected(rows, experts)
    np.testing.assert_allclose(whole, expected, atol=(1e-5 if form == "plain" else 2e-2) * np.abs(expected).max())
    for order in (rng.permutation(17), np.array([3]), np.array([16, 3, 3])):
        (output,) = session.run(None, {"rows": rows[order], "experts": experts[order]})
        np.testing.assert_array_equal(output, whole[order])


@pytest.mark.parametrize("form", ["plain", "int8", "int4", "Q4_0"])
def test_a_package_may_hold_them(form: str, tmp_path: Path) -> None:
    matrices = random_experts(form, NUM_EXPERTS, 24, 256)
    model = operator_model({"rows": ("R", 256), "experts": ("R",)}, _product(matrices))
    for tidy in (common.IdentityEliminationPass(), common.CommonSubexpressionEliminationPass()):
        tidy(model)
    ir.save(model, tmp_path / "model.onnx")
    graph = GraphFile.read(tmp_path / "model.onnx")
    assert graph.looping
    assert not graph.has_unbounded_work()
    ort.InferenceSession(tmp_path / "model.onnx", cpu_options(1), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("operator", ["Softmax", "Sigmoid"])
@pytest.mark.parametrize("num_experts", [3, 8, 60, 128, 257])
def test_what_routes_a_row_does_not_hang_on_its_neighbours(operator: str, num_experts: int) -> None:
    """Scores, the best of them, the lowest index first where they tie, and their shares."""
    top_k = min(8, num_experts)

    def build(editor: GraphEditor, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        scores = editor.op(operator, inputs, {"axis": -1} if operator == "Softmax" else {})
        best, indices = editor.op_multi("TopK", [scores, editor.int64s(top_k)], 2, {"axis": -1})
        indices.dtype = ir.DataType.INT64
        total = editor.op("ReduceSum", [best, editor.int64s(-1)], {"keepdims": 1})
        return [editor.op("Div", [best, total]), indices]

    session = _session({"rows": ("T", num_experts)}, build)
    rng = np.random.default_rng(num_experts)
    rows = np.round(3 * rng.standard_normal((40, num_experts), np.float32)) / np.float32(3)  # many ties
    weights, indices = session.run(None, {"rows": rows})
    np.testing.assert_array_equal(indices, np.argsort(-rows, axis=1, kind="stable")[:, :top_k])
    for width in (1, 2, 3, 7, 16):
        for first in range(0, 40 - width, width):
            narrow = session.run(None, {"rows": rows[first : first + width]})
            np.testing.assert_array_equal(narrow[0].view(np.uint32), weights[first : first + width].view(np.uint32))
            np.testing.assert_array_equal(narrow[1], indices[first : first + width])


def _product(matrices: ExpertMatrices) -> Build:
    return lambda editor, inputs: [matrices.product(editor, *inputs)]


def _session(inputs: dict[str, Sequence[int | str]], build: Build) -> ort.InferenceSession:
    model = operator_model(inputs, build)
    for value in model.graph.outputs:
        value.shape = ir.Shape([None, None])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return ort.InferenceSession(proto.SerializeToString(), cpu_options(1), providers=["CPUExecutionProvider"])
