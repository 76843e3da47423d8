"""Mixtures of experts: their operators, packages, states, blocks of files that they keep, and how they are made."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from onnx_ir.passes import common
from transformers import AutoModelForCausalLM

from models.upcycle import KEPT_SHARE, NUM_DENSE_LAYERS, NUM_EXPERTS, mixture_of
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.calibration.calibrate import calibrate
from reader_edge_export.calibration.calibration import Calibration, ExpertInputs
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.quantize.int8 import TwoPlaneProducts
from reader_edge_export.sources.architectures import RECURRENT, UNEVEN, is_mixture
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.measuring.width_probe import settle_width
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.expert_matrices import FORMS, ExpertMatrices, random_experts
from tests.export.conftest import Exported, TinyModel
from tests.export.gguf_models import build_source, write_model
from tests.export.source_models import chain_logits, layered, open_source
from tests.export.sources.source_folders import copy_folder
from tests.hybrid_states import check_random_trees
from tests.runtime.execution.native_operator import Build, operator_model
from tests.tiny_models import TINY_MODELS, VOCAB_SIZE, build_tiny_model, tiny_config

NUM_MET = 5


@pytest.mark.parametrize("storage", FORMS)
def test_each_row_meets_its_own_expert_whatever_stands_beside_it(storage: str) -> None:
    matrices = random_experts(storage, NUM_MET, 24, 256)
    session = _session({"rows": ("R", 256), "experts": ("R",)}, _product(matrices))
    rng = np.random.default_rng(0)
    rows, experts = rng.standard_normal((17, 256), np.float32), rng.integers(0, NUM_MET - 1, 17)
    (whole,) = session.run(None, {"rows": rows, "experts": experts})
    expected = matrices.expected(rows, experts)
    np.testing.assert_allclose(whole, expected, atol=(1e-5 if storage == "plain" else 2e-2) * np.abs(expected).max())
    for order in (rng.permutation(17), np.array([3]), np.array([16, 3, 3])):
        (output,) = session.run(None, {"rows": rows[order], "experts": experts[order]})
        np.testing.assert_array_equal(output, whole[order])


@pytest.mark.parametrize("storage", ["plain", "int8", "int4", "Q4_0"])
def test_a_package_may_hold_them(storage: str, tmp_path: Path) -> None:
    matrices = random_experts(storage, NUM_MET, 24, 256)
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


MIXTURES = [name for name in TINY_MODELS if is_mixture(tiny_config(name))]
KEEPING = [name for name in MIXTURES if tiny_config(name)["model_type"] in (*RECURRENT, *UNEVEN)]
_GRANITE = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "mamba_n_groups": 1}
_LATENT = {"qk_nope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 64}
_ROUTER = re.compile(r"\.(router(\.layer|\.proj)?|gate)\.(weight|bias)$")
TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()


@pytest.mark.parametrize("precision", ["fp32", "int8", pytest.param("int8-a16", marks=pytest.mark.long), "int4"])
@pytest.mark.parametrize("model_type", MIXTURES)
def test_packages_are_the_model_with_the_same_bits_in_trees(
    model_type: str, precision: str, exported: Exported
) -> None:
    package = ModelPackage.open(exported(model_type, precision, "exact"))
    assert package.manifest.checks["tree_rows_equal"] == 1
    sizes = {"granitemoehybrid-experts": (6, 2), "phimoe": (8, 2)}.get(model_type, (8, 3))
    assert (package.manifest.num_experts, package.manifest.num_experts_per_token) == sizes
    if precision == "fp32":
        assert package.manifest.checks["tree_logit_error"] < 2e-5
    target, _ = settle_width(HostTarget.open(package))
    assert [_scored(target, size) for size in (2, 7, 32)] == [_scored(target, 1)] * 3


@pytest.mark.parametrize("model_type", KEEPING)
def test_states_behind_trees_are_those_of_a_fresh_prefill(model_type: str, exported: Exported) -> None:
    target, _ = settle_width(HostTarget.open(ModelPackage.open(exported(model_type, "int8", "exact"))))
    check_random_trees(target, num_kept=1, num_steps=10)


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, {"norm_topk_prob": False}])
def test_layers_without_experts_and_shares_that_are_not_one(changes: dict[str, Any], tmp_path: Path) -> None:
    source = build_tiny_model("qwen3_moe", tmp_path / "source", **changes)
    export_model(source, tmp_path / "out", ExportOptions("fp32", check="quick"))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < 2e-5


@pytest.mark.long
@pytest.mark.parametrize(("model_type", "precision"), [*((each, "fp32") for each in MIXTURES), ("qwen3_moe", "int8")])
def test_experts_whose_scores_tie_are_chosen_as_in_the_source(model_type: str, precision: str, tmp_path: Path) -> None:
    """Two pairs of equal rows; with six experts PyTorch's products give them scores that differ in the last bits."""

    def pair_experts(tensors: dict[str, torch.Tensor]) -> None:
        routers = [name for name in tensors if _ROUTER.search(name)]
        assert routers
        for router in (tensors[name] for name in routers):
            router[-2:] = router[1:3].clone()

    source = build_tiny_model(model_type, tmp_path / "source")
    paired = copy_folder(source, tmp_path / "paired", pair_experts)
    export_model(paired, tmp_path / "out", ExportOptions(precision, check="quick"))
    checks = ModelPackage.open(tmp_path / "out").manifest.checks
    assert checks["tree_logit_error"] < 2e-5 if precision == "fp32" else checks["mean_kl_nats"] < 0.01


@pytest.mark.long
def test_blocks_of_a_file_stay(tmp_path: Path) -> None:
    """Down in a type that cannot: it becomes int8, calibrated."""
    model = build_source("qwen3_moe", tmp_path / "source", moe_intermediate_size=64)
    kinds = {f"blk.{layer}.ffn_down_exps.weight": Kind.F16 for layer in range(2)}
    kinds |= {f"blk.{layer}.ffn_gate_inp.weight": Kind.F32 for layer in range(2)}
    path = write_model(model, tmp_path, Kind.Q4_0, kinds=kinds)
    report = export_model(path, tmp_path / "out", ExportOptions("keep"))
    assert report.other_types == {"F16": 2}
    assert report.kept_types["Q4_0"] == 2 + 2 * 4 + 1  # experts and attention of each layer, embedding
    assert report.checks["tree_rows_equal"] == 1
    assert report.checks["mean_kl_nats"] < 0.05


@pytest.mark.parametrize(
    ("model_type", "kind", "changes"),
    [
        ("gpt_oss", Kind.MXFP4, {}),
        ("gpt_oss", Kind.Q8_0, {}),
        ("qwen3_5_moe_text", Kind.Q4_0, {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}),
        ("lfm2_moe", Kind.Q4_1, {"moe_intermediate_size": 64}),
        ("granitemoehybrid", Kind.Q5_0, _GRANITE),
        ("deepseek_v2", Kind.Q8_0, _LATENT),
        ("deepseek_v3", Kind.Q4_0, _LATENT | {"q_lora_rank": 64}),
        ("granitemoehybrid", Kind.MXFP4, _GRANITE | {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_files_of_mixtures_keep_their_types(
    model_type: str, kind: Kind, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Routers are in fp32, as converters have them. Trees are compared by the export, weights with the file's."""
    model = build_source(model_type, tmp_path / "source", **changes)
    routers = ("mlp.gate", "mlp.router", "feed_forward.gate", "block_sparse_moe.router")
    kinds = {f"blk.{layer}.ffn_gate_inp{end}.weight": Kind.F32 for layer in range(2) for end in ("", "_shexp")}
    path = write_model(model, tmp_path, kind, kinds=kinds)
    report = export_model(path, tmp_path / "out")
    assert report.precision == "keep"
    assert report.kept_types[kind.name] > 8
    opened = open_source(path)
    assert all(opened.weights.block_type(name) for name in opened.names.values() if ".experts." in name)
    assert any(part in name for name in opened.names.values() for part in routers)
    assert report.checks["tree_rows_equal"] == 1
    assert report.checks["mean_kl_nats"] < 0.02


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_experts_of_a_gpt_oss_file_can_be_rounded_too(precision: str, tmp_path: Path) -> None:
    model = build_source("gpt_oss", tmp_path / "source")
    path = write_model(model, tmp_path, Kind.MXFP4)
    report = export_model(path, tmp_path / "out", ExportOptions(precision))
    assert report.checks["tree_rows_equal"] == 1


def test_an_expert_that_no_text_met_has_inputs_that_are_alike() -> None:
    inputs = ExpertInputs.none(2, 6)
    inputs.add(torch.tensor([[3.0, 0, 0, 0, 0, 0]] * 100), torch.zeros(100, dtype=torch.long))
    seen, unseen = (inputs.of(expert).root_mean_squares() for expert in range(2))
    np.testing.assert_array_equal(unseen, np.ones(6))
    assert seen[0] > 2.8
    assert 0 < seen[1] < 0.4


def test_calibration_counts_what_each_expert_reads(tiny_model: TinyModel) -> None:
    model, calibration = layered(tiny_model("qwen3_moe")), Calibration()
    calibrate(model, [TEXT, TEXT[:7]], calibration)
    for experts in model.source.experts.values():
        assert calibration.inputs_of(experts.up.name).num_rows == 47
        num_experts = experts.down.shape[0]
        inputs = calibration.expert_inputs_of(experts.down.name, num_experts)
        assert inputs.num_rows.sum() == 47 * 3
        assert (inputs.squares.sum(axis=1) > 0).tolist() == (inputs.num_rows > 0).tolist()


def test_choosing_is_about_as_fine_as_fp32() -> None:
    from reader_edge_export.quantize.hadamard import block_size, hadamard
    from reader_edge_export.quantize.int8 import _two_planes

    weight = np.random.default_rng(0).standard_normal((96, 24), np.float32)
    values, scales, smoothing = _two_planes(weight)
    both = (values * scales[:, None]).reshape(2, 24, -1, block_size(96)).sum(axis=0)
    found = (both @ hadamard(block_size(96))).reshape(24, 96) * smoothing
    assert np.abs(found.T - weight).max() < 2e-4 * np.abs(weight).max()
    assert TwoPlaneProducts.__doc__


def _scored(target: Target, size: int) -> list[bytes]:
    """Bits of the logits of a text, so many tokens a pass."""
    cache, logits = target.new_cache(1, len(TEXT)), []
    for start in range(0, len(TEXT), size):
        chunk = TEXT[start : start + size]
        chain = Pass(0, [DraftTree.chain(chunk)], [range(len(chunk))], wants_logits=True, num_kept=len(chunk))
        logits += [row.tobytes() for row in target.forward(cache, chain).wanted_logits[0, : len(chunk)]]
        cache.commit(0, range(len(chunk)))
    return logits


def test_experts_are_parts_of_the_mlp(tiny_model: TinyModel) -> None:
    dense = AutoModelForCausalLM.from_pretrained(tiny_model("lfm2")).eval()
    mixture = mixture_of(dense).eval()
    columns = dense.model.layers[-1].feed_forward.w2.weight.T / KEPT_SHARE
    kept = []
    for expert in mixture.model.layers[-1].feed_forward.experts.down_proj:
        is_kept = (columns[:, None] == expert.T).all(-1).any(-1)
        assert is_kept.sum() == int(KEPT_SHARE * len(columns)) == expert.shape[1]
        kept.append(is_kept.tolist())
    assert len(np.unique(kept, axis=0)) == NUM_EXPERTS
    for old, new in zip(dense.model.layers[:NUM_DENSE_LAYERS], mixture.model.layers, strict=False):
        assert torch.equal(old.feed_forward.w2.weight, new.feed_forward.w2.weight)
    both = [chain_logits(model, list(range(3, 30))).flatten() for model in (dense, mixture)]
    assert torch.corrcoef(torch.stack(both))[0, 1] > 0.9
