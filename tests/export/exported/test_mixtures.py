"""Mixtures of experts from source to package: in every form that files have, one expert in memory at a time."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.architectures import RECURRENT, UNEVEN, is_mixture
from reader_edge_export.calibration.calibrate import calibrate
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.moments import ExpertInputs
from reader_edge_export.quantize.fine import FineProducts
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.folder_weights import FolderWeights
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, ExportError, UnsupportedArchitectureError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import settle_width
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.export.gguf_models import build_source, write_model
from tests.export.source_models import layered, open_source
from tests.hybrid_states import check_random_trees
from tests.tiny_models import TINY_MODELS, VOCAB_SIZE, build_tiny_model, tiny_config

MIXTURES = [name for name in TINY_MODELS if is_mixture(tiny_config(name))]
KEEPING = [name for name in MIXTURES if tiny_config(name)["model_type"] in (*RECURRENT, *UNEVEN)]
_GRANITE = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "mamba_n_groups": 1}
TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()
_OWN = re.compile(r"(.*)\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
TinyModel = Callable[[str], Path]


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-a16", "int4"])
@pytest.mark.parametrize("model_type", MIXTURES)
def test_a_package_is_the_model_and_its_trees_have_the_bits_of_single_tokens(
    model_type: str, precision: str, exported: Callable[..., Path]
) -> None:
    package = ModelPackage.open(exported(model_type, precision, "exact"))
    assert package.manifest.checks["tree_rows_equal"] == 1
    if precision == "fp32":
        assert package.manifest.checks["tree_logit_error"] < 2e-5
    target, _ = settle_width(HostTarget.open(package))
    assert [_scored(target, size) for size in (2, 7, 32)] == [_scored(target, 1)] * 3


@pytest.mark.parametrize("model_type", KEEPING)
def test_states_behind_trees_are_those_of_a_fresh_prefill(model_type: str, exported: Callable[..., Path]) -> None:
    target, _ = settle_width(HostTarget.open(ModelPackage.open(exported(model_type, "int8", "exact"))))
    check_random_trees(target, num_kept=1, num_steps=10)


def test_granites_files_have_other_names_than_modules_of_transformers_5(tiny_model: TinyModel) -> None:
    names = load_file(tiny_model("granitemoehybrid-experts") / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.input_linear.weight" in names


def test_all_experts_as_one_tensor_are_those_that_have_their_own(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = _copy(tiny_model("qwen3_moe"), tmp_path / "fused", _fused)
    (expected,), (found,) = (list(layered(path).logits([TEXT])) for path in (tiny_model("qwen3_moe"), folder))
    assert torch.equal(found, expected)


def test_mxfp4_is_read_exactly_and_stays_in_its_file_until_it_is_needed(tiny_model: TinyModel, tmp_path: Path) -> None:
    config = json.loads((tiny_model("gpt_oss") / "config.json").read_text())
    packed = _quantized(_copy(tiny_model("gpt_oss"), tmp_path / "packed", _mxfp4))
    plain = _copy(packed, tmp_path / "plain", _widened)
    (plain / "config.json").write_text(json.dumps(config))
    expected, found = (next(iter(layered(path).logits([TEXT]))) for path in (plain, packed))
    assert torch.equal(found, expected)
    report = export_model(packed, tmp_path / "out", ExportOptions("int8"))
    assert report.weight_types[0] == "MXFP4 4 bit"
    assert report.checks["tree_rows_equal"] == 1


def test_mxfp4_of_a_folder_stays_as_it_is(tiny_model: TinyModel, tmp_path: Path) -> None:
    packed = _quantized(_copy(tiny_model("gpt_oss"), tmp_path / "packed", _mxfp4))
    assert find_source(packed, None).is_kept
    report = export_model(packed, tmp_path / "out")
    assert (report.precision, report.kept_types, report.other_types) == ("keep", {"MXFP4": 4}, {"F32": 10})
    assert report.checks["tree_rows_equal"] == 1
    assert report.checks["mean_kl_nats"] < 0.01
    stored = load_file(packed / "model.safetensors")
    constants = {
        name: value.const_value.numpy()  # type: ignore[union-attr]
        for name, value in ir.load(tmp_path / "out" / GRAPH_NAME).graph.initializers.items()
        if ".mxfp4." in name
    }
    for name in ("gate_up_proj", "down_proj"):
        for part, ours in (("blocks", "qs"), ("scales", "scale_exponents")):
            expected = stored[f"model.layers.1.mlp.experts.{name}_{part}"].numpy()
            (found,) = (array for key, array in constants.items() if f"layers.1.mlp.experts.{name}.mxfp4.{ours}" in key)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors.pop("model.layers.0.mlp.experts.down_proj_scales"),
        lambda tensors: tensors.update({"model.layers.0.mlp.experts.down_proj": torch.zeros(8, 96, 64)}),
        lambda tensors: tensors.update({"model.layers.0.mlp.experts.down_proj_blocks": torch.zeros(8, 64, 4, 16)}),
        lambda tensors: tensors["model.layers.0.mlp.experts.down_proj_scales"].fill_(255),
    ],
)
def test_mxfp4_that_cannot_be_is_one_sentence(
    spoil: Callable[[dict[str, torch.Tensor]], object], tiny_model: TinyModel, tmp_path: Path
) -> None:
    packed = _copy(tiny_model("gpt_oss"), tmp_path / "packed", _mxfp4)
    spoilt = _copy(packed, tmp_path / "spoilt", spoil)
    with pytest.raises(ExportError, match=r"blocks that do not fit|has no\s+place|not all finite|lack"):
        open_source(spoilt)


def test_no_more_than_one_expert_is_read_at_a_time(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Of either form of files, in the second reading, the walk through the layers, and rounding."""

    def refuse(weights: FolderWeights, name: str) -> Any:
        assert ".experts." not in name
        return read(weights, name)

    read = FolderWeights.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderWeights, "read", refuse)
        fused = _copy(tiny_model("qwen3_moe"), tmp_path / "fused", _fused)
        for number, folder in enumerate((tiny_model("qwen3_moe"), fused)):
            for precision in ("fp32", "int8"):
                export_model(folder, tmp_path / f"{precision}-{number}", ExportOptions(precision, check="quick"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda tensors: tensors.pop("model.layers.0.mlp.experts.3.up_proj.weight"),
            "holds 15 tensors for model.layer",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.experts.8.down_proj.weight": torch.zeros(64, 48)}),
            "holds 9 tensors for model.layers.0.mlp.experts.down_proj",
        ),
        (
            lambda tensors: tensors.update({"model.layers.1.mlp.experts.0.down_proj.weight": torch.zeros(64, 47)}),
            r"of the shape \(64, 47\), which is not \(64, 48\)",
        ),
        (
            lambda tensors: tensors.update({"model.layers.1.mlp.experts.0.side_proj.weight": torch.zeros(64, 47)}),
            "no place",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.experts.down_proj": torch.zeros(8, 64, 48)}),
            "no place",
        ),
    ],
)
def test_experts_that_are_missing_or_too_many_are_one_sentence(
    spoil: Callable[[dict[str, torch.Tensor]], object], words: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = _copy(tiny_model("qwen3_moe"), tmp_path / "spoilt", spoil)
    with pytest.raises(ExportError, match=words):
        open_source(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 9}, "sends each token to 9 of 8 experts"),
        ({"num_experts_per_tok": 0}, "sends each token to 0 of 8 experts: correct it"),
        ({"num_experts": None}, "num_experts as null, which must be a whole number"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok as null, which must be a whole number"),
        ({"num_experts": 7}, "other numbers of experts"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
        ({"num_local_experts": 7}, "holds .* tensors for"),
    ],
)
def test_a_config_that_cannot_be_is_one_sentence(
    changes: dict[str, Any], words: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = _copy(tiny_model("qwen3_moe"), tmp_path / "source", lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ExportError, match=words):
        open_source(folder)


def test_quantised_experts_and_forms_for_gpus_are_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"send tokens to experts.*use attention 'exact'"):
        export_model(tiny_model("qwen3_moe"), tmp_path / "out", ExportOptions("fp16", "fast"))
    folder = _copy(tiny_model("qwen3_moe"), tmp_path / "source", lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    quantized = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}
    (folder / "config.json").write_text(json.dumps(config | quantized))
    with pytest.raises(UnsupportedArchitectureError, match="mixture of experts were quantised"):
        open_source(folder)


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, {"norm_topk_prob": False}])
def test_layers_without_experts_and_shares_that_are_not_one(changes: dict[str, Any], tmp_path: Path) -> None:
    source = build_tiny_model("qwen3_moe", tmp_path / "source", **changes)
    export_model(source, tmp_path / "out", ExportOptions("fp32", check="quick"))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < 2e-5


def test_blocks_of_a_file_stay(tmp_path: Path) -> None:
    """Down in a type that cannot: it becomes int8, calibrated."""
    model = build_source("qwen3_moe", tmp_path / "source", moe_intermediate_size=64)
    kinds = {f"blk.{layer}.ffn_down_exps.weight": Kind.F16 for layer in range(2)}
    kinds |= {f"blk.{layer}.ffn_gate_inp.weight": Kind.F32 for layer in range(2)}
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf", Kind.Q4_0, kinds=kinds)
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
        ("granitemoehybrid", Kind.MXFP4, _GRANITE | {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_files_of_every_mixture_stay_as_they_are(
    model_type: str, kind: Kind, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Routers are in fp32, as converters have them. Trees are compared by the export, weights with the file's."""
    model = build_source(model_type, tmp_path / "source", **changes)
    routers = ("mlp.gate", "mlp.router", "feed_forward.gate", "block_sparse_moe.router")
    kinds = {f"blk.{layer}.ffn_gate_inp{end}.weight": Kind.F32 for layer in range(2) for end in ("", "_shexp")}
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf", kind, kinds=kinds)
    report = export_model(path, tmp_path / "out")
    assert report.precision == "keep"
    assert report.kept_types[kind.name] > 8
    opened = open_source(path)
    assert all(opened.weights.block_type(name) for name in opened.names.values() if ".experts." in name)
    assert any(part in name for name in opened.names.values() for part in routers)
    assert report.checks["tree_rows_equal"] == 1
    assert report.checks["mean_kl_nats"] < 0.02


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_experts_of_a_gpt_oss_file_can_be_rounded_too(precision: str, tmp_path: Path) -> None:
    model = build_source("gpt_oss", tmp_path / "source")
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf", Kind.MXFP4)
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
    from reader_edge_export.quantize.fine import _rounded
    from reader_edge_export.quantize.hadamard import block_size, hadamard

    weight = np.random.default_rng(0).standard_normal((96, 24), np.float32)
    values, scales, smoothing = _rounded(weight)
    both = (values * scales[:, None]).reshape(2, 24, -1, block_size(96)).sum(axis=0)
    found = (both @ hadamard(block_size(96))).reshape(24, 96) * smoothing
    assert np.abs(found.T - weight).max() < 2e-4 * np.abs(weight).max()
    assert FineProducts.__doc__


def _scored(target: Target, size: int) -> list[bytes]:
    """Bits of the logits of a text, so many tokens a pass."""
    cache, logits = target.new_cache(1, len(TEXT)), []
    for start in range(0, len(TEXT), size):
        chunk = TEXT[start : start + size]
        chain = Pass(0, [DraftTree.chain(chunk)], [range(len(chunk))], wants_logits=True, num_kept=len(chunk))
        logits += [row.tobytes() for row in target.forward(cache, chain).wanted_logits[0, : len(chunk)]]
        cache.commit(0, range(len(chunk)))
    return logits


def _quantized(folder: Path) -> Path:
    """A folder whose config says that its experts are in MXFP4."""
    config = json.loads((folder / "config.json").read_text())
    quantized = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (folder / "config.json").write_text(json.dumps(config | quantized))
    return folder


def _copy(source: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _mxfp4(tensors: dict[str, torch.Tensor]) -> None:
    """Experts as gpt-oss has them: random numbers of four bits, powers of two near those of the weights."""
    rng = np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        num_experts, num_inputs, num_outputs = tensors.pop(name).shape
        shape = num_experts, num_outputs, num_inputs // 32
        tensors[f"{name}_blocks"] = torch.from_numpy(rng.integers(0, 256, (*shape, 16)).astype(np.uint8))
        tensors[f"{name}_scales"] = torch.from_numpy(rng.integers(121, 125, shape).astype(np.uint8))


def _widened(tensors: dict[str, torch.Tensor]) -> None:
    """The same in fp32, as llama.cpp reads it."""
    for name in [name for name in tensors if name.endswith("_blocks")]:
        scales = tensors.pop(name.replace("_blocks", "_scales")).numpy()
        blocks = tensors.pop(name).numpy()
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
        halves = np.concatenate([codes[..., :16] | codes[..., 16:] << 4], -1)  # llama.cpp's order
        rows = np.concatenate([scales[..., None], halves], -1).reshape(-1, 17)
        values = dequantize(rows, Kind.MXFP4).reshape(*blocks.shape[:2], -1)
        tensors[name.removesuffix("_blocks")] = torch.from_numpy(values).transpose(1, 2).contiguous()


def _fused(tensors: dict[str, torch.Tensor]) -> None:
    """An expert's own tensors as one of all."""
    own: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name in list(tensors):
        if found := _OWN.fullmatch(name):
            own.setdefault(found[1], {})[int(found[2]), found[3]] = tensors.pop(name)
    for mlp, parts in own.items():
        experts = sorted({expert for expert, _ in parts})
        gate_up = [torch.cat([parts[each, "gate"], parts[each, "up"]]) for each in experts]
        tensors[f"{mlp}.experts.gate_up_proj"] = torch.stack(gate_up)
        tensors[f"{mlp}.experts.down_proj"] = torch.stack([parts[each, "down"] for each in experts])
