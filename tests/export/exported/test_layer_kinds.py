"""Packages of recurrent, uneven, sharing and repeated layers: what they keep, their bits, what is refused."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.random_models.repeated_layers import repeat_layer, streamed_bytes
from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.proof import prove
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import softplus
from reader_edge_export.package.package_size import PackageSize
from reader_edge_export.sources.architectures import RECURRENT
from reader_edge_export.sources.folder.folder_weights import FolderWeights
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import settle_width
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.conftest import Exported, TinyModel
from tests.export.source_models import chain_logits, open_source
from tests.hybrid_states import check_random_trees
from tests.random_operations import check_random_operations
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

HYBRIDS = ["lfm2", "qwen3_5_text", "gemma4_text"]
UNMEASURED = EngineConfig(is_calibrated=False)
CONFIG = GenerationConfig(max_tokens=40, ignores_eos=True)


@pytest.fixture(params=HYBRIDS)
def package(request: pytest.FixtureRequest, exported: Exported) -> Path:
    return exported(request.param, "int8", "exact")


def test_hybrids_are_lossless_bit_for_bit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "DRAFTERS", ("stress", "none"))
    monkeypatch.setattr(variants, "ARRIVAL_DRAFTERS", ("stress",))
    report = prove(Engine.load(package, UNMEASURED), [EvalPrompt("the cat"), EvalPrompt("tides, and the sea")], 16)
    assert report.counts.tokens_compared > 0
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    stress = [run for run in report.runs if run.setting.drafter == "stress"]
    assert max(run.acceptance_length for run in stress) > 2


@pytest.mark.parametrize("types", [("fp32", None), ("int8", None), ("int4", None), ("int8", "int8"), ("int8", "fp16")])
@pytest.mark.parametrize("model_type", HYBRIDS)
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.usefixtures("two_cores")
def test_trees_and_commits_have_plain_bits(
    exported: Exported, model_type: str, types: tuple[str, str | None], threads: int
) -> None:
    precision, kv = types
    package = ModelPackage.open(exported(model_type, precision, "exact", kv))
    target, _ = settle_width(HostTarget.open(package, threads))
    check_random_trees(target, num_kept=1, num_steps=20)


@pytest.mark.parametrize(
    "model_type",
    [*HYBRIDS, "granitemoehybrid", "qwen3_moe", pytest.param("gemma4_text-experts", marks=pytest.mark.long)],
)
@pytest.mark.usefixtures("two_cores")
def test_random_operations_on_slots_leave_what_a_fresh_prefill_leaves(exported: Exported, model_type: str) -> None:
    target, _ = settle_width(HostTarget.open(ModelPackage.open(exported(model_type, "int8", "exact")), 2))
    assert check_random_operations(target, seed=5, num_operations=25) > 20


@pytest.mark.parametrize("uses_native", [True, False])
def test_prompts_and_sessions_go_on_where_they_stood(package: Path, uses_native: bool, tmp_path: Path) -> None:
    engine = Engine.load(package, EngineConfig(is_calibrated=False, uses_native=uses_native))
    fresh = engine.generate("the cat sat on the mat", CONFIG)
    again = engine.generate("the cat sat on the mat", CONFIG)
    assert again.token_ids == fresh.token_ids
    assert again.stats.num_reused_tokens == again.stats.num_prompt_tokens - 1
    engine.save_session(tmp_path / "kept")
    other = Engine.load(package, UNMEASURED)
    other.load_session(tmp_path / "kept")
    text = [*engine.encode_prompt("the cat sat on the mat"), *fresh.token_ids, 5]
    went_on = other.generate(text, CONFIG)
    assert went_on.stats.num_reused_tokens >= len(text) - 3
    other.forget()
    assert other.generate(text, CONFIG).token_ids == went_on.token_ids
    assert went_on.stats.num_accepted_tokens + went_on.stats.num_steps > 0


STATES = {  # of layer 0 of the tiny models; layer 1 attends, of Falcon-H1 both do both
    "lfm2": {"conv": (3, 64)},
    "qwen3_5_text": {"conv": (3, 96), "delta": (4, 16, 8)},
    "granitemoehybrid": {"conv": (3, 192), "mamba": (8, 16, 16)},
    "qwen3_5_moe_text": {"conv": (3, 96), "delta": (4, 16, 8)},
    "lfm2_moe": {"conv": (3, 64)},
    "qwen3_next": {"conv": (3, 96), "delta": (4, 16, 8)},
    "falcon_h1": {"conv": (3, 160), "mamba": (6, 16, 16)},
    "nemotron_h": {"conv": (3, 160), "mamba": (6, 16, 16)},
}
TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_package_tells_what_each_layer_keeps(model_type: str, exported: Exported) -> None:
    manifest = ModelPackage.open(exported(model_type, "fp32", "exact")).manifest
    recurrent, attention, *others = manifest.layers
    assert [layer.kind for layer in others] == ["none"] * (model_type == "nemotron_h")
    is_both = model_type == "falcon_h1"
    assert (recurrent.kind, dict(recurrent.states)) == ("hybrid" if is_both else "recurrent", STATES[model_type])
    assert (attention.kind, attention.num_kv_heads) == ("hybrid" if is_both else "attention", 2)
    numbers = (0, 1) if is_both else (1,)
    assert manifest.past_names() == [f"past_{part}.{number}" for number in numbers for part in ("key", "value")]
    assert manifest.checks["tree_rows_equal"] == 1
    assert manifest.checks["tree_logit_error"] < 2e-5


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_prompt_in_pieces_says_what_single_tokens_say(model_type: str, exported: Exported) -> None:
    target = HostTarget.open(ModelPackage.open(exported(model_type, "fp32", "exact")))
    expected = _last_logits(target, 1)
    for size in (3, 13, len(TEXT)):
        np.testing.assert_array_equal(_last_logits(target, size), expected)


@pytest.mark.parametrize("model_type", RECURRENT)
@pytest.mark.parametrize(("precision", "attention"), [("fp16", "fast"), ("int8", "portable"), ("fp32", "fast")])
def test_forms_that_are_not_for_cpus_alone_are_refused(
    model_type: str, precision: str, attention: str, tiny_model: TinyModel, tmp_path: Path
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


TABLE = "model.embed_tokens_per_layer.weight"


@pytest.mark.long
def test_a_manifest_tells_of_each_layer_what_it_keeps(exported: Exported) -> None:
    manifest = ModelPackage.open(exported("gemma4_text", "int8", "exact")).manifest
    windowed, whole = (2, 16), (1, 32)
    own = [Layer.attention(*sizes) for sizes in (windowed, whole, whole)]
    assert manifest.layers == (*own, Layer.attention(*windowed, shares=0), Layer.attention(*whole, shares=2))
    assert manifest.past_names() == [f"past_{kind}.{layer}" for layer in range(3) for kind in ("key", "value")]
    assert manifest.kv_row_bytes == 2 * (2 * 18 + 34 + 34)  # in int8, with two bytes of magnitude a row
    assert manifest.checks["tree_rows_equal"] == 1


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_table_of_layers_inputs_is_read_a_few_rows_at_a_time(
    precision: str, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, some = FolderWeights.read, FolderWeights.read_rows
    most = 7

    def read(weights: FolderWeights, name: str) -> Float32Array:
        assert name != TABLE
        return whole(weights, name)

    def read_rows(weights: FolderWeights, name: str, start: int, stop: int) -> Float32Array:
        assert name != TABLE or stop - start <= most
        return some(weights, name, start, stop)

    monkeypatch.setattr(FolderWeights, "read", read)
    monkeypatch.setattr(FolderWeights, "read_rows", read_rows)
    monkeypatch.setattr("reader_edge_export.sources.weights._PART_NUMBERS", most * 80)
    export_model(tiny_model("gemma4_text"), tmp_path / "out", ExportOptions(precision, check="none"))
    initializers = ir.load(tmp_path / "out" / GRAPH_NAME).graph.initializers.values()
    (table,) = (value for value in initializers if value.shape == (VOCAB_SIZE, 80))
    assert table.dtype == (ir.DataType.FLOAT if precision == "fp32" else ir.DataType.INT8)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_sizes_are_estimated_with_the_table(precision: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "hidden_size_per_layer_input": 64}
    source = build_tiny_model("gemma4_text", tmp_path / "source", **sizes)
    options = ExportOptions(precision, check="none")
    estimate = PackageSize.of(open_source(source), options)
    export_model(source, tmp_path / "out", options)
    taken = (tmp_path / "out" / WEIGHTS_NAME).stat().st_size
    padding = 4096 * len(list(open_source(source).skeleton.parameters()))
    assert estimate.is_least or taken <= estimate.weights
    assert estimate.weights - padding <= taken


@pytest.mark.parametrize("options", [ExportOptions("fp16", "fast"), ExportOptions("fp32", "portable")])
def test_what_is_for_devices_is_refused(options: ExportOptions, tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="layers that differ in what they keep, which are exported for CPUs alone: use attention"
    ):
        export_model(tiny_model("gemma4_text"), tmp_path / "out", options)


TOKENS = [5, 9, 13, 21, 34]


@pytest.mark.long
def test_a_repeated_layer_is_a_deeper_model_with_a_wider_vocabulary(tmp_path: Path) -> None:
    source, package = _repeated(tmp_path, ExportOptions("fp16", "fast"))
    _assert_deeper(package, source, tmp_path, tolerance=5e-3)
    head, layer = 2 * 64 * VOCAB_SIZE, streamed_bytes(ModelPackage.open(tmp_path / "one")) - 2 * 64 * VOCAB_SIZE
    assert streamed_bytes(package) == 3 * layer + head + 2 * 64 * 100


def _repeated(tmp_path: Path, options: ExportOptions) -> tuple[Path, ModelPackage]:
    """A source of one layer, and its package made three layers deep."""
    source = build_tiny_model("llama", tmp_path / "source", num_hidden_layers=1, tie_word_embeddings=False)
    export_model(source, tmp_path / "one", options)
    package = repeat_layer(ModelPackage.open(tmp_path / "one"), tmp_path / "three", 3, VOCAB_SIZE + 100)
    package.check_files()
    return source, package


def _assert_deeper(package: ModelPackage, source: Path, tmp_path: Path, tolerance: float) -> None:
    target = HostTarget.open(package, 1)
    cache = target.new_cache(1, len(TOKENS))
    wanted = Pass(0, [DraftTree.chain(TOKENS)], [range(len(TOKENS))], wants_logits=True)
    logits = target.forward(cache, wanted).wanted_logits[0]

    expected = chain_logits(_three_layers(source, tmp_path / "deeper"), TOKENS).numpy()
    assert logits.shape == (len(TOKENS), VOCAB_SIZE + 100)
    np.testing.assert_allclose(logits[:, :VOCAB_SIZE], expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_array_equal(logits[:, VOCAB_SIZE:], logits[:, :100])


def _three_layers(source: Path, folder: Path) -> PreTrainedModel:
    """The source's only layer, three times."""
    weights = AutoModelForCausalLM.from_pretrained(source).state_dict()
    deeper = build_tiny_model("llama", folder, num_hidden_layers=3, tie_word_embeddings=False)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(deeper, attn_implementation="eager").eval()
    model.load_state_dict({name: weights[re.sub(r"layers\.\d", "layers.0", name)] for name in model.state_dict()})
    return model
