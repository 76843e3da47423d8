"""Packages with trained speculators: the graph is the module, in every format that is read."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner
from gguf import GGMLQuantizationType
from safetensors.torch import load_file

from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.checks.quality_limits import speculator_warning
from reader_edge_export.sources.find import find_source
from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.speculator_check import GraphRunner, PassInputs
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import UnsupportedArchitectureError
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.package.model_package import ModelPackage
from tests.docs.test_pages import DOCS, code_blocks
from tests.export.conftest import TinyModel
from tests.export.gguf_models import build_source, write_model
from tests.export.speculators.speculator_folders import (
    DRAFT_VOCAB_SIZE,
    STATE_IDS,
    add_mtp,
    write_eagle3,
    write_mtp,
    write_plain_eagle3,
)
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

_Q8_0 = GGMLQuantizationType.Q8_0
_LAYERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, two layers": {"num_hidden_layers": 2, "attention_bias": True, "rope_parameters": {"rope_theta": 5e5}},
    "qwen3": {"model_type": "qwen3"},
}
_SWITCHES: list[dict[str, bool]] = [
    {},
    {"norm_before_residual": True, "norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
]


def _checks(source: Path, speculator: Path | str, out: Path, precision: str = "fp32") -> ModelPackage:
    export_model(
        source,
        out,
        ExportOptions(precision, check="quick", kv="fp32" if precision == "fp32" else None, speculator=speculator),
    )
    return ModelPackage.open(out)


@pytest.mark.parametrize("switches", _SWITCHES, ids=lambda each: ", ".join(each) or "plain")
@pytest.mark.parametrize("layer", _LAYERS)
def test_a_graph_in_fp32_is_the_module(
    layer: str, switches: dict[str, bool], tiny_model: TinyModel, tmp_path: Path
) -> None:
    write_eagle3(tmp_path / "speculator", _LAYERS[layer], **switches)
    package = _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out")
    assert package.manifest.checks["speculator_error"] < 1e-5
    assert package.manifest.checks["speculator_agreement"] == 1
    part = package.manifest.speculator
    assert part is not None
    assert (part.format, part.state_ids, part.draft_vocab_size) == ("eagle3", tuple(STATE_IDS), DRAFT_VOCAB_SIZE)
    assert set(STATE_IDS) <= set(package.manifest.state_ids)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_5_moe_text"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_mtp_layers_of_the_model_come_along(model_type: str, precision: str, tmp_path: Path) -> None:
    source = build_tiny_model(model_type, tmp_path / "model")
    add_mtp(source, model_type)
    package = _checks(source, "auto", tmp_path / "out", precision)
    assert package.manifest.checks["speculator_error"] < (1e-5 if precision == "fp32" else 0.2)
    assert package.manifest.speculator is not None
    assert package.manifest.speculator.state_ids == (3,)
    assert package.manifest.speculator.draft_vocab_size == VOCAB_SIZE


@pytest.mark.long
def test_a_folder_of_mtp_is_the_same_as_the_models_own_layers(tmp_path: Path) -> None:
    source = build_tiny_model("qwen3_5_text", tmp_path / "model")
    write_mtp(tmp_path / "speculator", "qwen3_5_text")
    add_mtp(source, "qwen3_5_text")
    own, given = (
        _checks(source, speculator, tmp_path / name)
        for speculator, name in (("auto", "own"), (tmp_path / "speculator", "given"))
    )
    for name in ("speculator.onnx", "speculator.onnx.data"):
        assert own.path(name).read_bytes() == given.path(name).read_bytes()


@pytest.mark.long
def test_a_folder_as_safeailab_publishes_them_is_read(tiny_model: TinyModel, tmp_path: Path) -> None:
    write_plain_eagle3(tmp_path / "speculator")
    package = _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out")
    assert package.manifest.checks["speculator_error"] < 1e-5


@pytest.mark.long
def test_a_converted_pickle_is_read(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "FOLDER"
    write_plain_eagle3(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    page = DOCS / "how-to" / "speculators.md"
    [block] = [block for block in code_blocks(page, "sh") if "torch.load" in block]
    exec(block.strip().removeprefix('python -c "').removesuffix('"'), {})  # noqa: S102  # our own text
    package = _checks(tiny_model("llama"), folder, tmp_path / "out")
    assert package.manifest.checks["speculator_error"] < 1e-5


_MODEL_OPT = {  # what NVIDIA's ModelOpt writes into eagle_config
    **{"eagle_aux_hidden_state_layer_ids": STATE_IDS, "use_aux_hidden_state": True, "use_mtp_layernorm": False},
    **{"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "next_layer_regular": True},
    **{"parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1},
}


def test_what_modelopt_says_of_an_eagle_is_what_is_built(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder, target = tmp_path / "speculator", find_source(tiny_model("llama"), None)
    write_plain_eagle3(folder)
    plain = find_speculator(folder, target)
    config = json.loads((folder / "config.json").read_text())
    del config["eagle_aux_hidden_state_layer_ids"]
    (folder / "config.json").write_text(json.dumps(config | {"eagle_config": _MODEL_OPT}))
    assert find_speculator(folder, target) == plain
    for name, value in (("parallel_draft_step", 2), ("parallel_draft_heads_num_layers", 2), ("next_layer_regular", 2)):
        (folder / "config.json").write_text(json.dumps(config | {"eagle_config": _MODEL_OPT | {name: value}}))
        with pytest.raises(UnsupportedArchitectureError, match=f"eagle_config .* sets '{name}' to 2"):
            find_speculator(folder, target)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["int8", "int8-a16", "int4"])
def test_beside_integers_a_speculator_has_eight_bits(precision: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    write_eagle3(tmp_path / "speculator")
    package = _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", precision)
    assert package.manifest.checks["speculator_error"] < 0.1


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_what_is_the_models_own_is_not_stored_twice(precision: str, tmp_path: Path) -> None:
    source = build_tiny_model("qwen3_5_text", tmp_path / "model")
    add_mtp(source, "qwen3_5_text")
    package = _checks(source, "auto", tmp_path / "out", precision)
    graph = ir.load(package.path("speculator.onnx")).graph
    tensors = [value.const_value for value in graph.initializers.values()]
    shared = [each for each in tensors if isinstance(each, ir.ExternalTensor) and each.location == "model.onnx.data"]
    assert (VOCAB_SIZE, 64) in [tuple(each.shape.numpy()) for each in shared]


@pytest.mark.long
def test_killed_exports_resume_with_speculators(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_eagle3(tmp_path / "speculator")
    whole = _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "whole", "int8")
    with monkeypatch.context() as patch:
        patch.setattr("reader_edge_export.speculators.speculator_export.write_speculator", _killed)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", "int8")
    result: list[str] = []
    options = ExportOptions("int8", check="quick", speculator=tmp_path / "speculator")
    export_model(tiny_model("llama"), tmp_path / "out", options, on_message=result.append)
    assert "Resuming" in result[0]
    for name in ("model.onnx", "model.onnx.data", "speculator.onnx", "speculator.onnx.data"):
        assert whole.path(name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_a_pass_without_kernels_of_our_own_says_nearly_the_same_with_no_rows_of_a_kind(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    write_eagle3(tmp_path / "speculator", norm_before_fc=True)
    package = _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", "int8")
    part = package.manifest.speculator
    assert part is not None
    rng = np.random.default_rng(0)
    rows = {"target": rng.normal(size=(2, 3 * 64)), "own": rng.normal(size=(2, part.hidden_size))}
    found = []
    for uses_native in (True, False):
        runner = GraphRunner(package.folder, part, 4, uses_native)
        for kind, start in (("target", 0), ("own", 2)):
            states = [rows[each].astype(np.float32)[: 2 if each == kind else 0] for each in rows]
            seen = np.tri(2, start + 2, start, dtype=bool)
            nodes = PassInputs(np.array([5, 7]), np.arange(start, start + 2), seen, *states)
            found.append(runner.run(nodes))
    for one, other in zip(found[:2], found[2:], strict=True):
        np.testing.assert_allclose(one.next_states, other.next_states, atol=0.05)


@pytest.mark.long
def test_a_gguf_file_gets_a_speculator_too(tmp_path: Path) -> None:
    write_eagle3(tmp_path / "speculator", {"hidden_size": 64}, lends_embedding=True)
    model = write_model(build_source("llama", tmp_path / "source"), tmp_path, _Q8_0)
    package = _checks(model, tmp_path / "speculator", tmp_path / "out", "keep")
    assert package.manifest.checks["speculator_error"] < 0.1


@pytest.mark.long
def test_the_use_of_a_speculator_is_reported(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_eagle3(tmp_path / "speculator")
    command = ["export", str(tiny_model("llama")), str(tmp_path / "out"), "--precision", "fp32", "--check", "quick"]
    exported = CliRunner().invoke(main, [*command, "--speculator", str(tmp_path / "speculator")])
    assert "speculator's best like the model's" in exported.stderr
    warning = speculator_warning(ModelPackage.open(tmp_path / "out").manifest.checks)
    assert warning is not None
    assert f"Warning: {warning}\n" in exported.stderr
    result = CliRunner().invoke(main, ["info", str(tmp_path / "out")]).stdout
    assert "EAGLE-3, a layer, 100 tokens, reads states 2, 0, 1" in result
    answer = ["run", str(tmp_path / "out"), "-p", "the cat", "-n", "8", "--stats"]
    ran = CliRunner().invoke(main, [*answer, "--no-calibrate"])  # where nothing was measured, it is tried
    assert re.search(r"speculator +│? *used in \d of \d steps", ran.stderr)
    assert "left out (--no-speculator)" in CliRunner().invoke(main, [*answer, "--no-speculator"]).stderr
    assert _use(answer, "--no-calibrate") == "used"
    assert _use(answer, "--no-speculator") == "left out"
    monkeypatch.setattr(SpeculatorSource, "pays_off", lambda source, pass_s: False)
    assert "left alone: its passes take too long to pay here" in CliRunner().invoke(main, answer).stderr
    assert _use(answer) == "left alone"


def _use(command: list[str], *options: str) -> str:
    """What `--json` tells of a speculator."""
    result = CliRunner().invoke(main, [*(each for each in command if each != "--stats"), "--json", *options])
    return str(json.loads(result.stdout)["stats"]["speculator"])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_runtime_agrees_with_the_exports_check(precision: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    write_eagle3(tmp_path / "speculator")
    package = _checks(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", precision)
    part, tokens = package.manifest.speculator, [5, 7, 9]
    assert part is not None
    states = np.random.default_rng(0).normal(size=(3, 3 * 64)).astype(np.float32)
    none = np.zeros((0, part.hidden_size), np.float32)
    runner, speculator = GraphRunner(package.folder, part, 4), HostSpeculator.open(package, threads=1)
    expected = runner.run(PassInputs(np.array(tokens), np.arange(3), np.tri(3, dtype=bool), states, none))
    found = speculator.catch_up(speculator.new_cache(1, 8), 0, [tokens], [states])
    np.testing.assert_array_equal(found.top_ids[0, 0], expected.top_ids[-1])
    np.testing.assert_allclose(found.next_states[0], expected.next_states, atol=1e-5)
