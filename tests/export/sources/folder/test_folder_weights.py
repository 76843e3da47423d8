"""Weights of a folder: experts in every form that files have, and no tensor left out without a word."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources import blank_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.folder_weights import FolderWeights
from reader_edge_runtime.errors import ConfigError, ExportError
from reader_edge_runtime.package.manifest import GRAPH_NAME
from tests.export.conftest import TinyModel
from tests.export.source_models import chain_logits, layered, load_folder, load_model, open_source
from tests.export.sources.source_folders import copy_folder, fused, mxfp4, quantized, widened
from tests.tiny_models import VOCAB_SIZE, build_tiny_model, change_config

TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()


def test_granites_files_have_other_names_than_modules_of_transformers_5(tiny_model: TinyModel) -> None:
    names = load_file(tiny_model("granitemoehybrid-experts") / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.input_linear.weight" in names


def test_all_experts_as_one_tensor_are_those_that_have_their_own(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = copy_folder(tiny_model("qwen3_moe"), tmp_path / "fused", fused)
    (expected,), (found,) = (list(layered(path).logits([TEXT])) for path in (tiny_model("qwen3_moe"), folder))
    assert torch.equal(found, expected)


def test_mxfp4_is_read_exactly_and_stays_in_its_file_until_it_is_needed(tiny_model: TinyModel, tmp_path: Path) -> None:
    config = json.loads((tiny_model("gpt_oss") / "config.json").read_text())
    packed = quantized(copy_folder(tiny_model("gpt_oss"), tmp_path / "packed", mxfp4))
    plain = copy_folder(packed, tmp_path / "plain", widened)
    (plain / "config.json").write_text(json.dumps(config))
    expected, found = (next(iter(layered(path).logits([TEXT]))) for path in (plain, packed))
    assert torch.equal(found, expected)
    report = export_model(packed, tmp_path / "out", ExportOptions("int8"))
    assert report.weight_types[0] == "MXFP4 4 bit"
    assert report.checks["tree_rows_equal"] == 1


@pytest.mark.long
def test_mxfp4_of_a_folder_stays_as_it_is(tiny_model: TinyModel, tmp_path: Path) -> None:
    packed = quantized(copy_folder(tiny_model("gpt_oss"), tmp_path / "packed", mxfp4))
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
    packed = copy_folder(tiny_model("gpt_oss"), tmp_path / "packed", mxfp4)
    spoilt = copy_folder(packed, tmp_path / "spoilt", spoil)
    with pytest.raises(ExportError, match=r"blocks that do not fit|has no\s+place|not all finite|lack"):
        open_source(spoilt).weights.expert_blocks("model.layers.0.mlp.experts.down_proj", 0)


@pytest.mark.parametrize(
    ("name", "packs", "older", "newer"),
    [
        ("qwen3_moe", False, "model.layers.0.mlp.experts.7.up_proj.weight", "layers.0.mlp.experts.7.up_proj.weight"),
        ("gpt_oss", True, "model.layers.0.mlp.experts.down_proj_scales", "layers.0.mlp.experts.down_proj_scales"),
        (
            "granitemoehybrid-experts",
            False,
            "model.layers.0.block_sparse_moe.input_linear.weight",
            "model.layers.0.block_sparse_moe.experts.gate_up_proj",
        ),
    ],
)
def test_experts_that_are_there_twice_with_other_values_are_one_sentence(
    name: str, packs: bool, older: str, newer: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    def double(tensors: dict[str, torch.Tensor]) -> None:
        if packs:
            mxfp4(tensors)
            tensors[newer.replace("_scales", "_blocks")] = tensors[older.replace("_scales", "_blocks")].clone()
        tensors[newer] = torch.zeros_like(tensors[older])

    folder = copy_folder(tiny_model(name), tmp_path / "spoilt", double)
    with pytest.raises(ExportError, match="which stand for the same weights and differ"):
        open_source(quantized(folder) if packs else folder)


@pytest.mark.long
def test_no_more_than_one_expert_is_read_at_a_time(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Of either form of files, in the walk through the layers, and rounding."""

    def refuse(weights: FolderWeights, name: str) -> Any:
        assert ".experts." not in name
        return read(weights, name)

    read = FolderWeights.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderWeights, "read", refuse)
        in_one = copy_folder(tiny_model("qwen3_moe"), tmp_path / "fused", fused)
        for number, folder in enumerate((tiny_model("qwen3_moe"), in_one)):
            for precision in ("fp32", "int8"):
                export_model(folder, tmp_path / f"{precision}-{number}", ExportOptions(precision, check="quick"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda tensors: tensors.pop("model.layers.0.mlp.experts.3.up_proj.weight"),
            r"holds 15 tensors for model.layer.*says 16, of 8 experts, and those of expert 3 differ",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.experts.8.down_proj.weight": torch.zeros(64, 48)}),
            r"holds 9 tensors for model.layers.0.mlp.experts.down_proj.*says 8, .* expert 8 differ",
        ),
        (
            lambda tensors: tensors.update({"model.layers.1.mlp.experts.0.down_proj.weight": torch.zeros(64, 47)}),
            r"of the shape \(64, 47\), which is not \(64, 48\)",
        ),
        (
            lambda tensors: tensors.update({"model.layers.1.mlp.experts.0.side_proj.weight": torch.zeros(64, 47)}),
            "no place",
        ),
        (lambda tensors: tensors.update({"model.layers.0.mlp.experts.down_proj": torch.zeros(8, 64, 48)}), "no place"),
    ],
)
def test_experts_that_are_missing_or_too_many_are_one_sentence(
    spoil: Callable[[dict[str, torch.Tensor]], object], words: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = copy_folder(tiny_model("qwen3_moe"), tmp_path / "spoilt", spoil)
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
def test_an_impossible_config_is_refused(
    changes: dict[str, Any], words: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = copy_folder(tiny_model("qwen3_moe"), tmp_path / "source", lambda _: None)
    change_config(folder, **changes)
    with pytest.raises(ExportError, match=words):
        open_source(folder)


def test_forms_for_gpus_are_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"send tokens to experts.*use attention 'exact'"):
        export_model(tiny_model("qwen3_moe"), tmp_path / "out", ExportOptions("fp16", "fast"))


IDS = list(range(3, 20))


def _add(folder: Path, **tensors: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight", "score.weight"]
)
def test_a_tensor_without_a_place_is_refused_by_its_name(name: str, source: Path) -> None:
    _add(source, **{name: torch.ones(64)})
    with pytest.raises(ExportError, match=rf"holds {name}, for which .* has no place"):
        load_folder(source)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"vocab_size": 1 << 40},
            r"embed_tokens\.weight' of the shape \(320, 64\) instead of \(1099511627776, 64\), which",
        ),
        ({"intermediate_size": 95}, r"down_proj\.weight' of the shape \(64, 96\) instead of \(64, 95\), which"),
        ({"num_key_value_heads": 4}, r"k_proj\.weight' of the shape \(32, 64\) instead of \(64, 64\), which"),
        ({"hidden_size": 10**30}, "hidden_size as 1000.*, which must be a whole number"),
    ],
)
def test_another_size_is_refused_before_memory_is_taken(changes: dict[str, int], words: str, source: Path) -> None:
    change_config(source, **changes)
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_folder(source)


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("lfm2", {"conv_L_cache": 1 << 40}, r"conv\.weight' of the shape .* of \(64, 1, 1099511627776\), which"),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 1 << 40}, r"conv1d\.weight' of the shape"),
        ("qwen3_5_text", {"linear_value_head_dim": 1 << 40}, "tables and norms take more than a gigabyte"),
        ("qwen3_5_text", {"linear_num_value_heads": 1 << 40}, "tables and norms take more than a gigabyte"),
        ("granitemoehybrid", {"mamba_d_conv": 1 << 40}, r"conv1d\.weight' of the shape"),
        ("granitemoehybrid", {"mamba_d_state": 1 << 40}, "tables and norms take more than a gigabyte"),
    ],
)
def test_recurrent_layers_of_other_sizes_are_refused(
    model_type: str, changes: dict[str, int], words: str, tmp_path: Path
) -> None:
    folder = build_tiny_model(model_type, tmp_path / "source")
    change_config(folder, **changes)
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_folder(folder)


def test_a_model_that_is_larger_than_memory_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blank_model, "free_bytes", lambda: 1000)
    with pytest.raises(ExportError, match=r"takes .* GiB of memory in fp32.*end other programs"):
        load_folder(source)


def test_layers_that_the_config_does_not_count_are_refused(source: Path) -> None:
    change_config(source, num_hidden_layers=1, layer_types=None)
    with pytest.raises(ExportError, match=r"holds model\.layers\.1\..* and 8 others, for which"):
        load_folder(source)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.0.attn.masked_bias"),
    ],
)
def test_tables_that_models_compute_themselves_are_passed_over(model_type: str, name: str, tmp_path: Path) -> None:
    source = build_tiny_model(model_type, tmp_path / "source")
    before = chain_logits(load_folder(source), IDS)
    _add(source, **{name: torch.ones(8)})
    assert torch.equal(chain_logits(load_folder(source), IDS), before)


@pytest.mark.parametrize("model_type", ["llama", "gemma", "gpt2"])
def test_a_stored_head_is_used_though_the_config_ties(model_type: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    source = build_tiny_model(model_type, tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    embedding = next(weight for name, weight in weights.items() if name.endswith(("embed_tokens.weight", "wte.weight")))
    tied = chain_logits(load_model(find_source(source, None)), IDS)
    _add(source, **{"lm_head.weight": embedding.clone()})
    assert torch.equal(chain_logits(load_model(find_source(source, None)), IDS), tied)
    _add(source, **{"lm_head.weight": 2 * embedding})
    logits = chain_logits(load_model(find_source(source, None)), IDS)
    torch.testing.assert_close(logits, 2 * tied)


def test_a_head_that_is_not_there_is_missed_where_the_config_does_not_tie_it(source: Path) -> None:
    change_config(source, tie_word_embeddings=False)
    with pytest.raises(ExportError, match=r"lack lm_head\.weight: fetch"):
        load_folder(source)


def test_an_output_embedding_alone_does_not_stand_for_the_input_embedding(source: Path) -> None:
    weights = load_file(source / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=r"lack model\.embed_tokens\.weight"):
        load_folder(source)


def test_weights_of_another_library_are_refused_by_its_name(source: Path) -> None:
    save_file(load_file(source / "model.safetensors"), source / "model.safetensors", {"format": "tf"})
    with pytest.raises(ExportError, match=r"in the layout 'tf', .* save the model with PyTorch"):
        find_source(source, None)


@pytest.mark.parametrize("name", ["norm.weight", "embed_tokens.weight", "layers.0.mlp.down_proj.weight"])
def test_two_tensors_for_the_same_weights_are_the_same_or_refused(name: str, source: Path) -> None:
    stored = load_file(source / "model.safetensors")[f"model.{name}"]
    expected = chain_logits(load_folder(source), IDS)
    _add(source, **{name: stored.clone()})
    torch.testing.assert_close(chain_logits(load_folder(source), IDS), expected, rtol=0, atol=0)
    _add(source, **{name: stored * 3})
    with pytest.raises(ExportError, match=rf"'(model\.)?{name}' and '(model\.)?{name}', which stand for the same"):
        load_folder(source)
