"""A folder that another tool quantised is the model that its widened weights make, and a spoilt one is no model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.checks.quality import source_figures
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.source_models import load_folder, load_model
from tests.export.sources.source_folders import WRITERS, Matrix, quantize_folder
from tests.tiny_models import build_tiny_model, change_config


@pytest.fixture
def plain(source: Path, tmp_path: Path) -> Path:
    """A copy of the source."""
    return Path(shutil.copytree(source, tmp_path / "plain"))


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_quantised_folder_is_the_model_of_its_widened_weights(name: str, source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS[name])
    found = find_source(source, None)
    model, expected = load_model(found), load_folder(plain)
    weights = dict(model.named_parameters())
    for parameter, values in expected.named_parameters():
        assert torch.equal(weights[parameter], values), parameter
    ids = torch.arange(2, 34).reshape(1, -1)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected(ids).logits)
    assert found.weight_types[0].endswith(f"{WRITERS[name].bits} bit")


@pytest.mark.parametrize("name", ["awq", "gptq4", "pack4"])
def test_a_quantised_folder_exports_like_the_widened_one(name: str, source: Path, plain: Path, tmp_path: Path) -> None:
    quantize_folder(source, plain, WRITERS[name])
    options = ExportOptions(precision="fp32", attention="fast")
    report = export_model(source, tmp_path / "quantised", options)
    export_model(plain, tmp_path / "widened", options)
    quantised, widened = (ModelPackage.open(tmp_path / each).manifest for each in ("quantised", "widened"))
    assert quantised.files == widened.files
    assert source_figures(report.weight_types) == {"source_weight_bits": WRITERS[name].bits}
    assert report.weight_types[0].endswith("4 bit")


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.7.input_layernorm.weight",
        "v_head.summary.weight",
    ],
)
def test_a_tensor_that_nothing_takes_is_refused(name: str, source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS["int8"])
    change(source, lambda weights: weights.update({name: torch.ones(32)}))
    with pytest.raises(ExportError, match=f"{re.escape(name)}, for which the model of its config"):
        load_model(find_source(source, None))


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_zero_biases_and_old_tables_change_nothing(source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS["gptq8"])
    projection = "model.layers.0.self_attn.k_proj"
    change(source, lambda w: w.update({f"{projection}.bias": torch.zeros(32)}))
    change(source, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    load_model(find_source(source, None))
    change(source, lambda w: w.update({f"{projection}.bias": torch.ones(32)}))
    with pytest.raises(ExportError, match=r"k_proj\.bias, for which the model of its config"):
        load_model(find_source(source, None))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w.pop("model.norm.weight"), "lack model.norm.weight: fetch"),
        (lambda w: w.update({"model.extra.weight": torch.ones(2)}), "model.extra.weight, for which"),
        (lambda w: w.update({"model.norm.weight": torch.ones(2)}), r"of the shape \(2,\) instead of \(64,\)"),
        (lambda w: w.update({"model.norm.weight": torch.ones(64).int()}), "as I32, which is no number of a model"),
        (lambda w: w.pop("model.layers.1.mlp.up_proj.scales"), "up_proj' lacks its scales"),
        (lambda w: [w.pop(name) for name in list(w) if "layers" in name], "holds no quantised weights"),
        (
            lambda w: w["model.layers.1.mlp.up_proj.scales"].fill_(torch.inf),
            "not all finite numbers, model.layers.1.mlp.up_proj.weight",
        ),
    ],
)
def test_a_spoilt_quantised_folder_is_one_sentence(
    edit: Callable[[dict[str, torch.Tensor]], object], words: str, source: Path, plain: Path
) -> None:
    quantize_folder(source, plain, WRITERS["awq"])
    change(source, edit)
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_model(find_source(source, None))


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_matrix_that_is_there_quantised_and_as_it_is_is_refused(name: str, source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS[name])
    matrix = "model.layers.0.self_attn.q_proj.weight"
    change(source, lambda tensors: tensors.update({matrix: torch.ones(64, 64)}))
    with pytest.raises(
        ExportError, match=r"^[^\n]*q_proj[^\n]*(quantised and as it is|a second matrix|of the shape)[^\n]*$"
    ):
        load_model(find_source(source, None))


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_head_of_its_own_is_used_where_the_config_ties_it(is_packed: bool, source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS["gptq8"])
    head = Matrix.draw((320, 64), 8, np.random.default_rng(1))
    parts = {f"lm_head.{part}": each for part, each in WRITERS["gptq8"].parts(head, 8).items()}
    change(source, lambda w: w.update(parts if is_packed else {"lm_head.weight": head.widened()}))
    weights = load_model(find_source(source, None)).state_dict()
    assert torch.equal(weights["lm_head.weight"], head.widened())
    embeddings = load_file(plain / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(weights["model.embed_tokens.weight"], embeddings)


def test_sizes_that_the_file_does_not_fill_are_refused_before_they_are_allocated(source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS["awq"])
    change_config(source, intermediate_size=1 << 34)
    with pytest.raises(ExportError, match=r"mlp\.[a-z_]+\.weight' of the shape"):
        load_model(find_source(source, None))


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_what_old_tools_say_in_a_file_of_its_own_is_read(name: str, source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS["gptq4" if name == "quantize_config.json" else "awq"])
    config = json.loads((source / "config.json").read_text())
    settings = config.pop("quantization_config")
    del settings["quant_method"]
    (source / "config.json").write_text(json.dumps(config))
    (source / name).write_text(json.dumps(settings))
    (source / "model.safetensors").rename(source / "gptq_model-4bit-16g.safetensors")
    expected = dict(load_folder(plain).named_parameters())
    for parameter, values in load_model(find_source(source, None)).named_parameters():
        assert torch.equal(expected[parameter], values), parameter


def test_inputs_come_first_where_the_model_has_them_so(tmp_path: Path) -> None:
    """GPT-2's matrices are (inputs, outputs); a tool packs them like any other."""
    folder = build_tiny_model("gpt2", tmp_path / "gpt2")
    writer = WRITERS["gptq8"]
    weights = load_file(folder / "model.safetensors")
    name = "transformer.h.0.mlp.c_fc.weight"
    num_inputs, num_outputs = weights.pop(name).shape
    matrix = Matrix.draw((num_outputs, num_inputs), 8, np.random.default_rng(0))
    parts = {f"{name.removesuffix('weight')}{part}": each for part, each in writer.parts(matrix, 8).items()}
    unprefixed = {key.removeprefix("transformer."): each for key, each in (weights | parts).items()}
    save_file(unprefixed, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config=writer.settings)
    loaded = dict(load_model(find_source(folder, None)).named_parameters())
    assert torch.equal(loaded[name], matrix.widened().T)


def test_weights_that_are_quantised_though_the_config_says_nothing_are_refused(source: Path, plain: Path) -> None:
    quantize_folder(source, plain, WRITERS["int8"])
    change_config(source, quantization_config=...)
    with pytest.raises(ExportError, match=r"\.weight' as I8, .*its config does not say which"):
        find_source(source, None)
