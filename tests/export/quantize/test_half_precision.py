"""fp16 and bf16 packages: close to the source, few operators, fp32 at the border."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.architectures import MIXTURES, RECURRENT, SUPPORTED, UNEVEN
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

Exported = Callable[..., Path]

FP16_LIMIT = 2e-3  # of the logits' scale
BF16_LIMIT = 2e-2

# Operators that a chain of small ones would show: norms, and halves turned against each other.
SMALL = {"Neg", "Pow", "ReduceMean", "Sqrt"}
# Inputs that the CUDA kernels of the graphs' operators read on the host; Shape makes its output there.
HOST_INPUTS = {"Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "TopK": (1,), "Unsqueeze": (1,)}
HOST_INPUTS |= {"Expand": (1,), "ReduceLogSumExp": (1,), "Squeeze": (1,)}

FOR_CPUS = (*RECURRENT, *MIXTURES, *UNEVEN)
ATTENDING = [each for each in SUPPORTED if each not in FOR_CPUS]
NORMED_AFTER = {"olmo2", "olmo3", "exaone4"}  # norms of what layers add, small as it is, and its rounding with it
GELU = {"gpt2", "phi"}  # their activation has a power of its own


@pytest.mark.parametrize("model_type", ATTENDING)
def test_fp16_computes_what_the_source_computes(model_type: str, exported: Exported) -> None:
    checks = ModelPackage.open(exported(model_type, "fp16", "fast")).manifest.checks
    limit = FP16_LIMIT * (1.5 if model_type in NORMED_AFTER else 1)
    assert checks["tree_logit_error"] < limit * checks["logit_scale"]
    assert checks["logit_scale"] > 0.5  # else the limit says nothing
    assert checks["mean_kl_nats"] < 1e-5


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2"])
def test_bf16_weights_compute_what_the_source_computes(model_type: str, exported: Exported) -> None:
    checks = ModelPackage.open(exported(model_type, "bf16", "fast")).manifest.checks
    assert checks["tree_logit_error"] < BF16_LIMIT * checks["logit_scale"]
    assert checks["mean_kl_nats"] < 1e-3


@pytest.mark.parametrize("model_type", ATTENDING)
def test_norms_rotary_embeddings_and_attention_are_single_operators(model_type: str, exported: Exported) -> None:
    operators = [
        node.op_type for node in ir.load(exported(model_type, "fp16", "fast", is_checked=False) / GRAPH_NAME).graph
    ]
    assert operators.count("Attention") == 2
    assert operators.count("RotaryEmbedding") == {"gpt2": 0, "exaone4": 2, "cohere2": 2}.get(model_type, 4)
    assert operators.count("RMSNormalization") + operators.count("LayerNormalization") >= 3
    assert not SMALL & set(operators) - ({"Pow"} if model_type in GELU else set())


@pytest.mark.parametrize("model_type", ATTENDING)
def test_no_value_goes_between_host_and_device(model_type: str, exported: Exported) -> None:
    """ONNX Runtime would copy it, and capture no pass: sizes are made on the host, and read there by some inputs."""
    graph = ir.load(exported(model_type, "fp16", "fast", is_checked=False) / GRAPH_NAME).graph
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is None or value.is_initializer():
                continue
            maker = value.producer()
            is_made_on_host = maker is not None and maker.op_type in ("Shape", "Size")
            assert is_made_on_host == (index in HOST_INPUTS.get(node.op_type, ())), (node.op_type, node.name)


@pytest.mark.parametrize("model_type", ATTENDING)
def test_angles_are_no_matrix_product(model_type: str, exported: Exported) -> None:
    """In fp32 it would be left to TensorFloat-32, which holds no odd positions beyond 2,048."""
    products = [
        node
        for node in ir.load(exported(model_type, "fp16", "fast", is_checked=False) / GRAPH_NAME).graph
        if node.op_type == "MatMul"
    ]
    assert {node.outputs[0].dtype for node in products} == {ir.DataType.FLOAT16}


@pytest.mark.parametrize(("precision", "data_type"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)])
def test_all_but_masks_positions_and_logits_is_half(precision: str, data_type: int, exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", precision, "fast", is_checked=False))
    graph = ir.load(package.folder / GRAPH_NAME).graph
    types = {value.name: value.dtype for value in (*graph.inputs, *graph.outputs)}
    assert types["tree_mask"] == types["logits"] == types["top_logits"] == ir.DataType.FLOAT
    assert types["past_key.0"] == types["present_value.1"] == data_type
    large = {v.dtype for v in graph.initializers.values() if v.shape is not None and np.prod(v.shape.numpy()) > 64}
    assert large == {data_type}
    assert package.manifest.kv_dtype == {"fp16": "float16", "bf16": "bfloat16"}[precision]


def test_norms_of_equal_weights_are_fused_too(tmp_path: Path) -> None:
    """As in every model that is not trained yet: the trace stores such weights once, and copies them."""
    import torch
    from transformers import AutoModelForCausalLM

    source = build_tiny_model("llama", tmp_path / "source", num_hidden_layers=1)
    model = AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
    model.save_pretrained(source)
    export_model(source, tmp_path / "out", ExportOptions("fp16", "fast"))
    operators = [node.op_type for node in ir.load(tmp_path / "out" / GRAPH_NAME).graph]
    assert operators.count("RMSNormalization") == 3
    assert not SMALL & set(operators)


def test_half_precision_halves_the_weights(exported: Exported) -> None:
    sizes = [
        (exported("llama", precision, "fast", is_checked=False) / WEIGHTS_NAME).stat().st_size
        for precision in ("fp32", "fp16", "bf16")
    ]
    assert sizes[1] < 0.51 * sizes[0]
    assert sizes[2] < 0.51 * sizes[0]


def test_a_node_that_sees_nothing_stays_finite(exported: Exported) -> None:
    """Padding nodes see no row at all; what they compute must not poison the rows they write."""
    target = HostTarget.open(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)))
    cache = HostCache(target.manifest, 2, 32)
    trees = [DraftTree.chain([5, 6, 7, 8]), DraftTree.chain([5])]
    target.forward(cache, Pass(0, trees, [range(4), range(1)]))
    assert np.isfinite(cache.slab.astype(np.float32)).all()


def test_a_weight_beyond_fp16_is_refused(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    source = build_tiny_model("llama", tmp_path / "source")
    model = AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    model.save_pretrained(source)
    with pytest.raises(ExportError, match="use --precision bf16"):
        export_model(source, tmp_path / "out", ExportOptions(precision="fp16", attention="fast"))
    assert not (tmp_path / "out").exists()


def test_tied_embeddings_are_stored_once_in_half_precision(exported: Exported) -> None:
    graph = ir.load(exported("llama", "fp16", "fast", is_checked=False) / GRAPH_NAME).graph
    shapes = [value.shape.numpy() for value in graph.initializers.values() if value.shape is not None]
    assert [shape for shape in shapes if VOCAB_SIZE in shape and len(shape) == 2] == [(VOCAB_SIZE, 64)]
