"""Adapters that are merged: the weights are those that PEFT's definition gives, and only those are changed."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from gguf import GGMLQuantizationType as Kind
from transformers.pytorch_utils import Conv1D

from reader_edge.cli import main
from reader_edge.terminal.export_report import adapter_pairs
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.adapters.adapter import find_adapter
from reader_edge_export.sources.adapters.merged_weights import merged
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import AdapterError, ConfigError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import TinyModel
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.source_models import load_folder, open_source
from tests.export.sources.adapters.adapter_files import (
    RANK,
    added,
    draw_factors,
    gguf_factors,
    matrices,
    peft_config,
    peft_tensors,
    write_gguf_adapter,
    write_peft,
)

LIMIT = 2e-6


def merge(source: Path, adapter: Path) -> SourceModel:
    found = find_source(source, None)
    return merged(found.open_model(), find_adapter(adapter, found))[0]


def check(model: SourceModel, wanted: dict[str, Array]) -> None:
    """wanted: outputs first."""
    for name, matrix in wanted.items():
        values = model.weights.read(f"{name}.weight")
        is_turned = isinstance(model.skeleton.get_submodule(name), Conv1D)
        np.testing.assert_allclose(values.T if is_turned else values, matrix, atol=LIMIT, rtol=0)
        np.testing.assert_allclose(model.weights.read_rows(f"{name}.weight", 1, 4), values[1:4], atol=LIMIT, rtol=0)


@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "phi3", "granitemoehybrid", "qwen3_5_text", "gemma3_text", "apertus"]
)
def test_all_matrices_get_what_either_format_adds(model_type: str, tmp_path: Path) -> None:
    module, architecture = build_source(model_type, tmp_path / "tiny"), GGUF_MODELS[model_type][0]
    file = write_model(module, tmp_path / "tiny.gguf")
    factors = draw_factors(module)
    stored = gguf_factors(module, architecture, factors)
    adapters = [
        write_peft(tmp_path / "adapter", peft_tensors(factors)),
        write_gguf_adapter(tmp_path / "adapter.gguf", architecture, stored),
    ]
    wanted = {name: added(matrix, *factors[name], scale=8 / RANK) for name, matrix in matrices(module).items()}
    assert len(stored) >= 2 * len(wanted) >= 12
    for source in (tmp_path / "tiny", file):
        for adapter in adapters:
            check(merge(source, adapter), wanted)


def test_ranks_scales_and_lengths_are_those_of_the_config(tiny_model: TinyModel, tmp_path: Path) -> None:
    """DoRA with patterns and the scale of rsLoRA; of patterns that fit a module, the first counts."""
    folder = tiny_model("llama")
    module, every = load_folder(folder), draw_factors(load_folder(folder))
    names = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"]
    factors = {name: every[name] for name in names}
    factors[names[2]] = draw_factors(module, rank=5)[names[2]]
    lengths = {name: np.linspace(0.5, 2, len(up), dtype=np.float32) for name, (up, _) in factors.items()}
    alphas = {"layers.1.self_attn.q_proj": 5, "q_proj": 2.5}
    adapter = write_peft(
        tmp_path / "adapter",
        peft_tensors(factors, lengths),
        **{"use_dora": True, "use_rslora": True, "rank_pattern": {"down_proj": 5}, "alpha_pattern": alphas},
    )
    scales = [2.5 / math.sqrt(RANK), 5 / math.sqrt(RANK), 8 / math.sqrt(5)]
    plain = matrices(module)
    changed = {
        name: added(plain[name], *factors[name], scale, lengths[name])
        for name, scale in zip(names, scales, strict=True)
    }
    check(merge(folder, adapter), plain | changed)


def test_an_alpha_of_nought_in_a_file_leaves_products_as_they_are(tiny_model: TinyModel, tmp_path: Path) -> None:
    """As llama.cpp has it."""
    name, module = "model.layers.1.mlp.up_proj", load_folder(tiny_model("llama"))
    factors = {name: draw_factors(module)[name]}
    values = {"adapter.lora.alpha": 0.0}
    adapter = write_gguf_adapter(tmp_path / "adapter.gguf", "llama", gguf_factors(module, "llama", factors), values)
    check(merge(tiny_model("llama"), adapter), {name: added(matrices(module)[name], *factors[name], scale=1)})


def test_names_of_a_model_that_sees_images_are_those_of_its_text_model(tiny_model: TinyModel, tmp_path: Path) -> None:
    name, module = "model.layers.1.mlp.up_proj", load_folder(tiny_model("llama"))
    factors = draw_factors(module)[name]
    adapter = write_peft(tmp_path / "adapter", peft_tensors({name.replace("model.", "model.language_model."): factors}))
    check(merge(tiny_model("llama"), adapter), {name: added(matrices(module)[name], *factors, scale=8 / RANK)})


def test_a_package_answers_as_the_merged_model(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Its checks compare it with the merged weights, and it says what it was made of."""
    folder, names = tiny_model("llama"), ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.gate_proj")
    factors = draw_factors(load_folder(folder))
    adapter = write_peft(tmp_path / "pirate", peft_tensors({name: factors[name] for name in names}))
    arguments = ["export", str(folder), str(tmp_path / "out"), "--adapter", str(adapter), "--precision", "fp32"]
    result = CliRunner().invoke(main, [*arguments, "--check", "quick"])
    assert result.exit_code == 0, result.output
    assert "pirate, merged into 2 matrices" in result.stderr
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.source_name == "llama with pirate"
    assert manifest.source_fingerprint not in ("", find_source(folder, None).fingerprint())
    assert manifest.checks["tree_logit_error"] < 1e-4


def test_a_merge_is_known_by_what_was_read_and_not_by_files_of_later(tiny_model: TinyModel, tmp_path: Path) -> None:
    name, source = "model.layers.0.self_attn.q_proj", find_source(tiny_model("llama"), None)
    factors = {name: draw_factors(load_folder(tiny_model("llama")))[name]}
    folder = write_peft(tmp_path / "adapter", peft_tensors(factors))
    read = find_adapter(folder, source)
    known = merged(source.open_model(), read)[2]
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(lora_alpha=9)), "utf-8")
    found = [merged(source.open_model(), each)[2] for each in (read, find_adapter(folder, source))]
    assert [each == known for each in found] == [True, False]


def test_the_report_says_so_where_no_number_changes(tiny_model: TinyModel, tmp_path: Path) -> None:
    name, folder = "model.layers.0.self_attn.q_proj", tiny_model("llama")
    factors = {name: draw_factors(load_folder(folder))[name]}
    adapter = write_peft(tmp_path / "adapter", peft_tensors(factors), lora_alpha=1e-300)
    report = export_model(folder, tmp_path / "out", ExportOptions("fp32", check="none", adapter=adapter))
    assert adapter_pairs(report.adapter) == [("adapter", "adapter, which changes no number of the model")]


def test_the_matrices_of_latents_heads_get_their_rows(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder, name = tiny_model("deepseek_v2"), "model.layers.1.self_attn.kv_b_proj"
    module = load_folder(folder)
    factors = draw_factors(module)[name]
    model = merge(folder, write_peft(tmp_path / "adapter", peft_tensors({name: factors})))
    wanted = added(matrices(module)[name], *factors, scale=8 / RANK)
    heads = model.latent_heads[1]
    rows = [(heads.keys.read(head).T, heads.values.read(head)) for head in range(heads.keys.shape[0])]
    np.testing.assert_allclose(np.concatenate([each for pair in rows for each in pair]), wanted, atol=LIMIT, rtol=0)


def test_what_an_adapter_changes_does_not_stay_as_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = build_source("llama", tmp_path / "tiny", hidden_size=64, intermediate_size=128)
    file = write_model(module, tmp_path / "tiny.gguf", Kind.Q8_0)
    name = "model.layers.0.self_attn.v_proj"
    adapter = write_peft(tmp_path / "adapter", peft_tensors({name: draw_factors(module)[name]}))
    plain, changed = open_source(file), merge(file, adapter)
    assert plain.weights.block_type(f"{name}.weight") is not None
    assert changed.weights.block_type(f"{name}.weight") is None
    report = export_model(file, tmp_path / "out", ExportOptions("keep", check="none", adapter=adapter))
    assert report.other_types == {"Q8_0 with the adapter": 1}
    assert report.kept_types["Q8_0"] == len(plain.names) - 1

    def stop(config: object, precision: str, attention: str) -> None:
        raise ConfigError(precision)

    monkeypatch.setattr("reader_edge_export.pipeline.check_options", stop)
    for chosen, options in (("keep", ExportOptions()), ("int8", ExportOptions(adapter=str(adapter)))):
        with pytest.raises(ConfigError, match=f"^{chosen}$"):
            export_model(file, tmp_path / "auto", options)


def test_a_factor_that_is_not_finite_ends_the_export(tiny_model: TinyModel, tmp_path: Path) -> None:
    name, module = "model.layers.0.self_attn.v_proj", load_folder(tiny_model("llama"))
    tensors = peft_tensors({name: draw_factors(module)[name]})
    tensors[f"base_model.model.{name}.lora_B.weight"][0, 0] = torch.inf
    adapter = write_peft(tmp_path / "adapter", tensors)
    with pytest.raises(AdapterError, match=f"^'{adapter}' leaves numbers in {name}.weight that are not finite: fetch"):
        export_model(tiny_model("llama"), tmp_path / "out", ExportOptions("fp32", check="none", adapter=adapter))
    assert not (tmp_path / "out").exists()
