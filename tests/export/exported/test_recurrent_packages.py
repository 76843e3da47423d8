"""Packages of models with recurrent layers: what they keep, what they say whatever the width, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import softplus
from reader_edge_export.sources.architectures import RECURRENT
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.tiny_models import VOCAB_SIZE

STATES = {  # of layer 0 of the tiny models; layer 1 attends
    "lfm2": {"conv": (3, 64)},
    "qwen3_5_text": {"conv": (3, 96), "delta": (4, 16, 8)},
    "granitemoehybrid": {"conv": (3, 192), "mamba": (8, 16, 16)},
    "qwen3_5_moe_text": {"conv": (3, 96), "delta": (4, 16, 8)},
    "lfm2_moe": {"conv": (3, 64)},
}
TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_package_tells_what_each_layer_keeps(model_type: str, exported: Callable[..., Path]) -> None:
    manifest = ModelPackage.open(exported(model_type, "fp32", "exact")).manifest
    recurrent, attention = manifest.layers
    assert (recurrent.kind, dict(recurrent.states)) == ("recurrent", STATES[model_type])
    assert (attention.kind, attention.num_kv_heads) == ("attention", 2)
    assert manifest.past_names() == ["past_key.1", "past_value.1"]
    assert manifest.checks["tree_rows_equal"] == 1
    assert manifest.checks["tree_logit_error"] < 2e-5


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_prompt_in_pieces_says_what_single_tokens_say(model_type: str, exported: Callable[..., Path]) -> None:
    target = HostTarget.open(ModelPackage.open(exported(model_type, "fp32", "exact")))
    expected = _last_logits(target, 1)
    for size in (3, 13, len(TEXT)):
        np.testing.assert_array_equal(_last_logits(target, size), expected)


@pytest.mark.parametrize("model_type", RECURRENT)
@pytest.mark.parametrize(("precision", "attention"), [("fp16", "fast"), ("int8", "portable"), ("fp32", "fast")])
def test_forms_that_are_not_for_cpus_alone_are_refused(
    model_type: str, precision: str, attention: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{model_type} model has layers that keep states.*'exact' instead of"):
        export_model(tiny_model(model_type), tmp_path / "out", ExportOptions(precision, attention))
    assert not list(tmp_path.iterdir())


def test_softplus_rounds_a_number_the_same_wherever_it_stands() -> None:
    numbers = np.concatenate((np.random.default_rng(1).normal(0, 6, 300), [0, -80, 80, -1e-7])).astype(np.float32)
    session = _softplus_session()
    whole = session.run(None, {"x": numbers})[0]
    np.testing.assert_allclose(whole, np.logaddexp(numbers.astype(np.float64), 0), rtol=4e-7)
    for size in (1, 3, 7):
        pieces = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        np.testing.assert_array_equal(np.concatenate([session.run(None, {"x": each})[0] for each in pieces]), whole)


def _last_logits(target: HostTarget, size: int) -> npt.NDArray[np.float32]:
    """Of a text taken in, so many tokens a pass."""
    cache = target.new_cache(1, len(TEXT))
    for start in range(0, len(TEXT), size):
        chunk = TEXT[start : start + size]
        chain = Pass(0, [DraftTree.chain(chunk)], [[len(chunk) - 1]], wants_logits=True, num_kept=len(chunk))
        logits: npt.NDArray[np.float32] = target.forward(cache, chain).wanted_logits[0, 0].copy()
        cache.commit(0, range(len(chunk)))
    return logits


def _softplus_session() -> ort.InferenceSession:
    x = ir.Value(name="x", shape=ir.Shape(["n"]), type=ir.TensorType(ir.DataType.FLOAT))
    model = ir.Model(ir.Graph([x], [], nodes=[], opset_imports={"": 24}, name="softplus"), ir_version=11)
    editor = GraphEditor(model)
    output = softplus(editor, x)
    output.name, output.shape = "y", ir.Shape(["n"])
    editor.append()
    model.graph.outputs.append(output)
    onnx.checker.check_model(ir.to_proto(model))
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
