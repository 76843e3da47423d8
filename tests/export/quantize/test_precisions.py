"""Stored forms: row independence bit for bit, small rounding errors, one vocabulary matrix where it is tied."""

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from transformers import AutoModelForCausalLM

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_export.quantize.compensation import BLOCK
from reader_edge_export.quantize.hadamard import HadamardRotation
from reader_edge_export.quantize.int4 import quantize_blocks
from reader_edge_export.quantize.int8 import quantize_columns
from reader_edge_export.sources.architectures import LATENT, MIXTURES, RECURRENT, SUPPORTED, UNEVEN
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.conftest import Exported, TinyModel
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

PROMPT = list(range(5, 42))
TREE = DraftTree.root(7)
for token_id, parent in zip([9, 11, 9, 30, 31, 32, 7, 8, 9, 10, 50], [0, 0, 1, 1, 2, 4, 4, 6, 7, 7, 10], strict=True):
    TREE.add(token_id, parent, "test")


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-a16", "int4"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2", "qwen2"])
def test_a_nodes_bits_depend_on_its_ancestors_only(model_type: str, precision: str, exported: Exported) -> None:
    target = HostTarget.open(ModelPackage.open(exported(model_type, precision, "exact", is_checked=False)), threads=1)
    in_tree = _forward(target, [PROMPT, PROMPT[:9]], [TREE, TREE])
    for b, prompt in enumerate([PROMPT, PROMPT[:9]]):
        for node in range(len(TREE)):
            path = [other for other in range(len(TREE)) if TREE.ancestors_and_depths()[0][node, other]]
            token_ids = [TREE.token_ids[other] for other in path]
            single = _forward(target, [prompt + token_ids[:-1]], [DraftTree.chain(token_ids[-1:])])[0]
            np.testing.assert_array_equal(single[0], in_tree[b, node])
            if node not in TREE.parents:  # other chains are parts of a leaf's
                chain = _forward(target, [prompt], [DraftTree.chain(token_ids)])[0]
                np.testing.assert_array_equal(chain, in_tree[b, path])


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-a16", "int4"])
@pytest.mark.usefixtures("two_cores")
def test_bits_do_not_depend_on_the_number_of_threads(precision: str, exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", precision, "exact"))
    one, two = (_forward(HostTarget.open(package, threads), [PROMPT], [TREE]) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-a16", "int4"])
def test_logit_rows_choose_nodes_without_changing_their_bits(precision: str, exported: Exported) -> None:
    target = HostTarget.open(ModelPackage.open(exported("llama", precision, "exact")), threads=1)
    everything = _forward(target, [PROMPT, PROMPT[:9]], [TREE, TREE])
    rows = [[11, 0, 3], [2, 2, 10]]
    chosen = _forward(target, [PROMPT, PROMPT[:9]], [TREE, TREE], rows)
    for b in range(2):
        np.testing.assert_array_equal(chosen[b], everything[b, rows[b]])


@pytest.mark.parametrize("attention", ["exact", "fast"])
def test_the_cache_is_updated_in_place(
    attention: str, exported: Exported, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge_runtime.execution.onnxruntime.session.LOG_SEVERITY", 2)
    target = HostTarget.open(ModelPackage.open(exported("llama", "fp32", attention, is_checked=False)), threads=1)
    cache = HostCache(target.manifest, 1, 32)
    target.forward(cache, Pass(0, [DraftTree.chain(PROMPT[:9])], [[0]]))
    assert "in-place" not in capfd.readouterr().err
    written = np.abs(cache.slab).sum(axis=(0, 1, 2, 4)) > 0
    np.testing.assert_array_equal(written, np.arange(32) < 9)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-a16", "int4", "fp16"])
def test_tied_embeddings_are_stored_once(precision: str, exported: Exported) -> None:
    attention = "fast" if precision == "fp16" else "exact"
    assert _vocabulary_matrices(exported("llama", precision, attention, is_checked=False)) == [(VOCAB_SIZE, 64)]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-a16", "int4"])
def test_untied_embeddings_are_both_stored(precision: str, exported: Exported) -> None:
    assert _vocabulary_matrices(exported("phi", precision, "exact", is_checked=False)) == [(VOCAB_SIZE, 64)] * 2


@pytest.mark.long
def test_large_numbers_of_an_embedding_do_not_take_the_steps_of_the_whole_row(tmp_path: Path) -> None:
    source = build_tiny_model("phi", tmp_path / "source", hidden_size=128)
    model = AutoModelForCausalLM.from_pretrained(source)
    embedding = model.get_input_embeddings().get_parameter("weight").detach()
    embedding[:, 64:] *= 50
    model.save_pretrained(source)
    export_model(source, tmp_path / "out", ExportOptions("int8"))
    stored = ir.load(tmp_path / "out" / GRAPH_NAME).graph.initializers
    constants = [value.const_value for name, value in stored.items() if name.startswith("embedding.")]
    integers, scales = sorted((each.numpy() for each in constants if each is not None), key=np.size, reverse=True)
    blocks = embedding.numpy().reshape(VOCAB_SIZE, 2, 64)
    errors = np.abs(integers.reshape(blocks.shape) * scales[..., None] - blocks).max(axis=2)
    assert (errors <= 0.51 / 127 * np.abs(blocks).max(axis=2)).all()


@pytest.mark.long
def test_each_step_in_precision_is_closer_to_the_source(exported: Exported) -> None:
    strays = [_strays(exported("llama", precision, "exact")) for precision in ("int8-a16", "int8", "int4")]
    assert 1.5 * strays[0] < strays[1] < strays[2] / 10 < 0.01


def test_large_inputs_do_not_take_the_steps_of_all(exported: Exported, tiny_model: TinyModel, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    for layer in model.model.layers:
        for norm, products in (
            (layer.input_layernorm, (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)),
            (layer.post_attention_layernorm, (layer.mlp.gate_proj, layer.mlp.up_proj)),
        ):
            norm.weight.data[5:60:17] *= 64  # the same model, and what a scale of the whole row would be spent on
            for product in products:
                product.weight.data[:, 5:60:17] /= 64
    model.save_pretrained(tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model("llama") / name, tmp_path / "source" / name)
    export_model(tmp_path / "source", tmp_path / "out", ExportOptions("int8"))
    assert _strays(tmp_path / "out") < 1.5 * _strays(exported("llama", "int8", "exact"))


@pytest.mark.long
def test_no_weight_is_stored_that_nothing_reads(exported: Exported) -> None:
    for precision in ("fp32", "int8", "int8-a16", "int4"):
        graph = ir.load(exported("qwen2", precision, "exact", is_checked=False) / GRAPH_NAME).graph
        assert all(value.uses() for value in graph.initializers.values())


MATRICES = st.tuples(st.integers(1, 70), st.integers(1, 5), st.integers(0, 2**32 - 1))


@given(MATRICES)
@settings(max_examples=50, deadline=None)
def test_int8_columns_round_to_half_a_step(shape: tuple[int, int, int]) -> None:
    weight = _random_matrix(*shape)
    quantized, scales = quantize_columns(weight)
    assert (np.abs(quantized * scales - weight) <= 0.5001 * scales).all()
    assert np.abs(quantized.astype(int)).max() <= 127


@given(MATRICES)
@settings(max_examples=50, deadline=None)
def test_int4_blocks_round_to_half_a_step_or_better(shape: tuple[int, int, int]) -> None:
    weight = _random_matrix(*shape)
    restored = _restored(weight)
    extreme = np.abs(weight).max(axis=0)
    assert (np.sqrt(np.square(restored - weight).mean(axis=0)) <= 0.5001 * extreme / 7).all()


def test_an_int4_block_holds_its_extreme_of_either_sign() -> None:
    weight = np.array([[1.0, -1.0], [-0.5, 0.5]], np.float32)
    np.testing.assert_allclose(_restored(weight), weight, atol=1e-6)


def test_an_all_zero_matrix_stays_zero() -> None:
    weight = np.zeros((BLOCK, 2), np.float32)
    assert not quantize_columns(weight)[0].any()
    assert not _restored(weight).any()


def _random_matrix(num_inputs: int, num_outputs: int, seed: int) -> Float32Array:
    return np.random.default_rng(seed).normal(size=(num_inputs, num_outputs)).astype(np.float32)


def _strays(folder: Path) -> float:
    return ModelPackage.open(folder).manifest.checks["mean_kl_nats"]


def _restored(weight: Float32Array) -> Float32Array:
    """A weight (K, J) from its int4 form, not rotated, of inputs never seen."""
    as_it_is = HadamardRotation(np.ones(len(weight), np.float32), 1)
    values, block_scales, scales = quantize_blocks(weight, as_it_is, InputMoments.none(len(weight)))
    halves = np.stack([values & 15, values >> 4], axis=-1).reshape(*block_scales.shape, BLOCK).astype(np.float32) - 8
    restored: Float32Array = (halves * block_scales[..., None]).reshape(len(values), -1).T * scales
    return restored[: len(weight)]


def _vocabulary_matrices(folder: Path) -> list[tuple[int, ...]]:
    """Sizes of those that are stored, blocks of four bits put together."""
    graph = ir.load(folder / GRAPH_NAME).graph
    shapes = [value.shape.numpy() for value in graph.initializers.values() if value.shape is not None]
    matrices = [(shape[0], shape[1] * BLOCK) if len(shape) == 3 else shape for shape in shapes]
    return [shape for shape in matrices if len(shape) == 2 and VOCAB_SIZE in shape and min(shape) > BLOCK]


def _forward(
    target: HostTarget, prompts: list[list[int]], trees: list[DraftTree], rows: list[list[int]] | None = None
) -> Float32Array:
    """Logits (B, R, V) of trees over freshly prefilled prompts; all nodes where `rows` is None."""
    cache = HostCache(target.manifest, len(prompts), max(map(len, prompts)) + max(map(len, trees)))
    for slot, prompt in enumerate(prompts):
        target.forward(cache, Pass(slot, [DraftTree.chain(prompt)], [[0]]))
        cache.commit(slot, list(range(len(prompt))))
    rows = rows or [list(range(len(tree))) for tree in trees]
    return target.forward(cache, Pass(0, trees, rows, wants_logits=True)).wanted_logits.copy()


@pytest.mark.long
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_wide_heads_are_summed_alike_before_and_after_64_visible_rows(num_kv_heads: int, tmp_path: Path) -> None:
    source = build_tiny_model("llama", tmp_path / "source", head_dim=256, num_key_value_heads=num_kv_heads)
    export_model(source, tmp_path / "out", ExportOptions(precision="fp32"))
    report = probe_width(HostTarget.open(ModelPackage.open(tmp_path / "out"), threads=1))
    assert (report.num_rows, report.num_equal) == (16, 16)


FP16_LIMIT = 2e-3  # of the logits' scale
BF16_LIMIT = 2e-2

# Operators that a chain of small ones would show: norms, and halves turned against each other.
SMALL = {"Neg", "Pow", "ReduceMean", "Sqrt"}
# Inputs that the CUDA kernels of the graphs' operators read on the host; Shape makes its output there.
HOST_INPUTS = {"Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "TopK": (1,), "Unsqueeze": (1,)}
HOST_INPUTS |= {"Expand": (1,), "ReduceLogSumExp": (1,), "Squeeze": (1,)}

FOR_CPUS = (*RECURRENT, *MIXTURES, *UNEVEN, *LATENT)
ATTENDING = [each for each in SUPPORTED if each not in FOR_CPUS]
_NUM_ROTARY = {"gpt2": 0, "exaone4": 2, "cohere2": 2, "muse_glimmer_text": 2}
NORMED_AFTER = {
    "olmo2",
    "olmo3",
    "exaone4",
    "muse_glimmer_text",
}  # norms of what layers add, small as it is, and its rounding with it
GELU = {"gpt2", "phi"}  # their activation has a power of its own


@pytest.mark.parametrize("model_type", ATTENDING)
def test_fp16_computes_what_the_source_computes(model_type: str, exported: Exported) -> None:
    checks = ModelPackage.open(exported(model_type, "fp16", "fast")).manifest.checks
    limit = FP16_LIMIT * (1.5 if model_type in NORMED_AFTER else 1)
    assert checks["tree_logit_error"] < limit * checks["logit_scale"]
    assert checks["logit_scale"] > 0.5  # else the limit says nothing
    assert checks["mean_kl_nats"] < 1e-5


@pytest.mark.long
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
    assert operators.count("RotaryEmbedding") == _NUM_ROTARY.get(model_type, 4)
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
