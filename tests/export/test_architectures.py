"""Every architecture, every attention variant: the graph computes what the source module computes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reader_edge_export.calibration.calibrate import calibrate
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN
from reader_edge_export.options import ExportOptions
from reader_edge_export.package_graph import write_graph
from reader_edge_export.sources.architectures import LATENT, RECURRENT, SUPPORTED, is_mixture
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.trace.tree_config import sliding_window_of, trace_model
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.manifest import ATTENTIONS, GRAPH_NAME, ROW_ATTENTIONS
from tests.export.architectures import ARCHITECTURES
from tests.export.conftest import TinyModel
from tests.export.exported.simulated_devices import DEVICE_FORMS, DEVICE_MODELS, cuda_operators, operators_of
from tests.export.graph_runner import LENGTHS, NUM_NODES, GraphRunner, ancestors
from tests.export.moments import RotatedFloatProducts, unrounded_columns
from tests.export.source_models import open_source
from tests.tiny_models import MAX_CONTEXT, TINY_CONFIGS, TINY_MODELS, VOCAB_SIZE, tiny_config

INT8_LIMIT = 0.1
MIXTURES = [name for name in TINY_MODELS if is_mixture(tiny_config(name))]
PROMPTS, TREE = (np.random.default_rng(size).integers(3, VOCAB_SIZE, (2, size)) for size in (max(LENGTHS), NUM_NODES))


@dataclass(frozen=True, slots=True)
class Traced:
    """A source, its logits of every path (2, N, V), its graph with markers, its sliding window, and its calibration."""

    source: SourceModel
    expected: Float32Array
    graph: Path
    window: int | None
    calibration: Calibration

    def graph_of(self, options: ExportOptions) -> Path:
        """The folder of the graph that an export with these options writes, written once; not to be changed."""
        folder = self.graph.parent / f"{options.precision}-{options.attention}-{options.kv_dtype}"
        if not folder.exists():
            folder.mkdir()
            write_graph(self.graph, folder, options, self.calibration, self.source)
        return folder


@pytest.fixture(scope="module")
def traced(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Traced]:
    """model_type -> what was traced, once each."""
    done: dict[str, Traced] = {}

    def trace(model_type: str) -> Traced:
        if model_type not in done:
            model = AutoModelForCausalLM.from_pretrained(tiny_model(model_type), attn_implementation="eager").eval()
            source, calibration = open_source(tiny_model(model_type)), Calibration()
            graph = tmp_path_factory.mktemp(model_type) / "traced.onnx"
            with quiet_libraries():
                layers = trace_model(source, MAX_CONTEXT, graph)
            calibrate(LayeredModel(source), np.resize(PROMPTS, (4, 50)).tolist(), calibration)
            done[model_type] = Traced(source, _path_logits(model), graph, sliding_window_of(layers), calibration)
        return done[model_type]

    return trace


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_trees_of_a_batch_equal_paths_alone(model_type: str, attention: str, traced: Callable[[str], Traced]) -> None:
    is_portable = attention in ROW_ATTENTIONS
    if (is_portable and model_type in RECURRENT) or (attention != "exact" and model_type in (*MIXTURES, *LATENT)):
        pytest.skip("its layers have no such form")
    source = traced(model_type)
    assert (source.window == 8) == ARCHITECTURES[model_type].has_windows
    graph = source.graph_of(ExportOptions("fp32", attention)) / GRAPH_NAME
    logits = GraphRunner(graph, source.window).tree_logits(PROMPTS, TREE)
    assert np.abs(logits - source.expected).max() < ARCHITECTURES[model_type].limit
    assert np.abs(source.expected).max() > 0.5  # else the limit says nothing
    assert not GraphFile.read(graph).has_unbounded_work()  # a package with it would be refused


@pytest.mark.parametrize("model_type", [each for each in TINY_MODELS if each not in (*MIXTURES, *LATENT)])
def test_rows_that_are_spread_for_rounding_are_the_same_products(
    model_type: str, traced: Callable[[str], Traced], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = traced(model_type)
    monkeypatch.setattr("reader_edge_export.quantize.weight_storage.Int8Products", RotatedFloatProducts)
    monkeypatch.setattr("reader_edge_export.quantize.vocabulary.quantize_columns", unrounded_columns)
    monkeypatch.setattr("reader_edge_export.quantize.vocabulary._STORED", np.float32)
    write_graph(source.graph, tmp_path, ExportOptions("int8", "fast"), source.calibration, source.source)
    logits = GraphRunner(tmp_path / GRAPH_NAME, source.window).tree_logits(PROMPTS, TREE)
    # A rotation rounds, and layers enlarge that, recurrent ones most; a wrong one is off by a thousand times as much.
    assert np.abs(logits - source.expected).max() < 8 * ARCHITECTURES[model_type].limit


@pytest.mark.long
@pytest.mark.parametrize(("precision", "kv"), [("int8", "int8"), ("int8-a16", "fp32")])
@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_int8_operators_compute_the_same_with_native_kernels_and_without(
    model_type: str, precision: str, kv: str, traced: Callable[[str], Traced]
) -> None:
    source = traced(model_type)
    graph = source.graph_of(ExportOptions(precision, "exact", kv=kv)) / GRAPH_NAME
    pure = GraphRunner(graph, source.window).tree_logits(PROMPTS, TREE)
    errors = np.abs(pure - source.expected).max(axis=2).ravel()
    num_far = int((errors >= INT8_LIMIT * np.abs(source.expected).max()).sum())
    assert num_far <= ARCHITECTURES[model_type].num_rerouted
    if native_library() is not None:
        native = GraphRunner(graph, source.window, native_library()).tree_logits(PROMPTS, TREE)
        np.testing.assert_array_equal(native, pure)


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_a_layer_of_an_int8_graph_has_few_nodes(model_type: str, traced: Callable[[str], Traced]) -> None:
    operators = _operators(traced(model_type).graph_of(ExportOptions("int8", "exact")))
    architecture = ARCHITECTURES[model_type]
    assert operators["RotaryHeads"] == (architecture.num_layers if architecture.fuses_heads else 0)
    assert operators["SwiGLU"] == (architecture.num_swiglus if architecture.fuses_swiglu else 0)
    assert operators["SpreadRowLinearBias"] == architecture.num_biases  # the head's of phi included
    assert operators["CacheRows"] == architecture.num_cached
    if architecture.fuses_heads and operators["Int8CacheAttention"] and model_type not in MIXTURES:
        assert operators["Reshape"] == (
            0 if model_type == "phi" else 2
        )  # of a tied embedding; heads are merged where attention writes them


@pytest.mark.long
@pytest.mark.parametrize("model_type", DEVICE_MODELS)
def test_operators_of_device_packages_are_on_cuda(model_type: str, traced: Callable[[str], Traced]) -> None:
    """One that is new here may have: scripts/check_cuda_kernels asks the wheel, and writes the table again."""
    for precision, attention in DEVICE_FORMS:
        graph = traced(model_type).graph_of(ExportOptions(precision, attention)) / GRAPH_NAME
        assert operators_of(graph) <= cuda_operators(), (precision, attention)


def test_readme_lists_the_supported_architectures() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    listed = " ".join(readme.split("Supported architectures: ")[1].split(": [")[0].split()).split(", ")
    assert listed == [ARCHITECTURES[model_type].name for model_type in SUPPORTED]


def test_what_was_shown_of_each_is_documented() -> None:
    models = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    documented = [line.split("|")[2].strip() for line in models.splitlines() if line.startswith("| ") and "`" in line]
    assert documented == [f"`{model_type}`" for model_type in SUPPORTED]


def test_every_architecture_has_a_tiny_model_and_is_described() -> None:
    assert tuple(TINY_CONFIGS) == SUPPORTED
    assert tuple(ARCHITECTURES) == TINY_MODELS


def test_biases_that_are_all_alike_are_part_of_the_product_too(tiny_model: TinyModel, tmp_path: Path) -> None:
    source = open_source(tiny_model("qwen2"))
    for name, parameter in source.skeleton.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    with quiet_libraries():
        trace_model(source, MAX_CONTEXT, tmp_path / "traced.onnx")
    calibration = Calibration()
    calibrate(LayeredModel(source), [list(range(3, 90))], calibration)
    write_graph(tmp_path / "traced.onnx", tmp_path, ExportOptions("int8", "exact"), calibration, source)
    operators = _operators(tmp_path)
    assert (operators["SpreadRowLinearBias"], operators["RotaryHeads"]) == (2, 2)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_graph_follows_the_contract(attention: str, traced: Callable[[str], Traced]) -> None:
    model = ir.load(traced("mistral").graph_of(ExportOptions("fp32", attention)) / GRAPH_NAME)
    assert {value.name: str(value.shape) for value in model.graph.inputs} == {
        "input_ids": "[B,N]",
        "position_ids": "[B,N]",
        "tree_mask": "[B,1,N,M]",
        "tree_mask_sliding": "[B,1,N,M]",
        "write_pos": "[B]",
        "logit_rows": "[B,R]",
        **{f"past_{kind}.{layer}": "[B,2,S,16]" for kind in ("key", "value") for layer in range(2)},
    }
    gives_rows = attention in ROW_ATTENTIONS
    written = "new_{}.{} [B,2,N,16]" if gives_rows else "present_{}.{} [B,2,S,16]"
    assert {value.name: str(value.shape) for value in model.graph.outputs} == {
        "logits": f"[B,R,{VOCAB_SIZE}]",
        **({} if gives_rows else {"top_ids": "[B,R,8]", "top_logits": "[B,R,8]"}),
        **({"log_sum_exp": "[B,R]"} if attention == "fast" else {"hidden_states": "[B,R,64]"}),
        **dict(written.format(kind, layer).split() for kind in ("key", "value") for layer in range(2)),
    }
    integers = {value.dtype for value in model.graph.inputs} - {ir.DataType.FLOAT}
    assert integers == {ir.DataType.INT32 if gives_rows else ir.DataType.INT64}
    assert model.ir_version <= 11
    own = {OPERATOR_DOMAIN: 1} if attention == "exact" else {}
    assert model.graph.opset_imports == {"": 18 if attention in ROW_ATTENTIONS else 24, **own}
    assert {node.domain for node in model.graph} == {"", *own}
    assert {node.op_type for node in model.graph if node.domain} == {
        function.name for function in model.functions.values()
    }


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_sizes_are_read_once_and_not_per_layer(model_type: str, traced: Callable[[str], Traced]) -> None:
    operators = _operators(traced(model_type).graph_of(ExportOptions("fp32", "exact")))
    assert operators["Shape"] <= 4
    # Of experts: their biases, the last of their sums.
    assert operators["Gather"] <= ARCHITECTURES[model_type].num_gathers + 3 * operators["CumSum"]


def test_the_growth_of_queries_is_looked_up_and_not_computed(traced: Callable[[str], Traced]) -> None:
    """A logarithm's last bit may hang on how many are taken at a time."""
    folder = traced("ministral3").graph_of(ExportOptions("int8", "exact"))
    assert not _operators(folder)["Log"]
    table = next(
        value.const_value.numpy()
        for value in ir.load(folder / GRAPH_NAME).graph.initializers.values()
        if value.const_value is not None and value.const_value.shape == (-(-MAX_CONTEXT // 12),)
    )
    np.testing.assert_allclose(table, 1 + 0.5 * np.log(1 + np.arange(len(table))), rtol=1e-6)


def test_a_window_as_wide_as_the_context_is_no_window(tiny_model: TinyModel, tmp_path: Path) -> None:
    with quiet_libraries():
        layers = trace_model(open_source(tiny_model("mistral")), 8, tmp_path / "traced.onnx")
    assert sliding_window_of(layers) is None
    names = [value.name for value in ir.load(tmp_path / "traced.onnx").graph.inputs]
    assert "tree_mask_sliding" not in names


def _operators(folder: Path) -> Counter[str]:
    return Counter(node.op_type for node in ir.load(folder / GRAPH_NAME).graph)


def _path_logits(model: PreTrainedModel) -> Float32Array:
    expected = np.zeros((2, NUM_NODES, VOCAB_SIZE), np.float32)
    for b, length in enumerate(LENGTHS):
        for node, path in enumerate(ancestors()):
            text = np.concatenate([PROMPTS[b, :length], TREE[b, path]])
            with torch.no_grad():
                expected[b, node] = model(torch.from_numpy(text)[None], use_cache=False).logits[0, -1].numpy()
    return expected
