"""Modules of speculators compute what their makers' do; an embedding shared with the target is the target's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.speculators.networks import Eagle3Config, Eagle3Module, MtpModule
from reader_edge_export.speculators.speculator_check import GraphRunner, PassInputs, PassOutput
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.text_attention import DenseAttention
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.gguf_models import build_source, write_model
from tests.export.record_transformers5 import NUM_COLUMNS, NUM_ROWS, fill
from tests.export.speculators.record_speculators import (
    DRAFT_VOCAB_SIZE,
    EAGLE3,
    FILE,
    MTP,
    NUM_NODES,
    NUM_STATES,
    NUM_STEPS,
    inputs,
)
from tests.export.speculators.speculator_folders import HIDDEN_SIZE, add_mtp, write_eagle3
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

_RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_computes_what_the_speculators_package_does(name: str) -> None:
    model_type, layer, switches = EAGLE3[name]
    config = AutoConfig.for_model(model_type, **layer)
    size = int(layer["hidden_size"])
    module = Eagle3Module(Eagle3Config(config, DRAFT_VOCAB_SIZE, NUM_STATES, size, **switches))
    given, attention = inputs(NUM_STATES * size), DenseAttention()
    attention.seen = torch.ones(NUM_NODES, NUM_NODES, dtype=torch.bool).tril()
    own = torch.eye(NUM_NODES, dtype=torch.bool)
    found: list[dict[str, torch.Tensor]] = []
    with torch.no_grad():
        fill(dict(module.named_parameters()))
        states = module.joined(given["states"][:, :NUM_NODES])
        for step in range(NUM_STEPS):  # each node goes on alone, behind those that the target scored
            ids = given["input_ids"][:, step : step + NUM_NODES]
            positions = torch.arange(1 + step, 1 + step + NUM_NODES)[None]
            states = _add_step(module, ids, positions, states, attention, found)
            attention.seen = torch.cat([attention.seen, own], dim=1)
    _compare(found, _RECORDED[f"eagle3, {name}"])


@pytest.mark.parametrize("name", MTP)
def test_mtp_computes_what_the_speculators_package_does(name: str) -> None:
    module = MtpModule(AutoConfig.for_model(**MTP[name]))
    given = inputs(module.config.hidden_size)
    found: list[dict[str, torch.Tensor]] = []
    num_nodes = len(given["input_ids"][0]) - NUM_STEPS - 1
    with torch.no_grad():
        fill(dict(module.named_parameters()))
        states = module.joined(given["states"][:, :num_nodes])
        for step in range(NUM_STEPS):
            ids = given["input_ids"][:, step + 1 : step + 1 + num_nodes]
            attention = DenseAttention()
            attention.seen = torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril()
            states = _add_step(module, ids, torch.arange(num_nodes)[None], states, attention, found)
    _compare(found, _RECORDED[f"mtp, {name}"])


def _add_step(
    module: SpeculatorModule,
    ids: torch.Tensor,
    positions: torch.Tensor,
    states: torch.Tensor,
    attention: DenseAttention,
    found: list[dict[str, torch.Tensor]],
) -> torch.Tensor:
    stepped = module.step(ids, positions, states, attention)
    found.append({"logits": module.lm_head(stepped.read)[0], "next_states": stepped.next_states[0]})
    return stepped.next_states


def _compare(found: list[dict[str, torch.Tensor]], recorded: list[dict[str, Any]]) -> None:
    assert len(found) == len(recorded) == NUM_STEPS
    for one, other in zip(found, recorded, strict=True):
        for name, values in one.items():
            expected = torch.tensor(other[name])
            largest = float(expected.abs().max())
            torch.testing.assert_close(values[-NUM_ROWS:, :NUM_COLUMNS], expected, atol=1e-5 * largest, rtol=0)


# precision -> types of matrices in a GGUF file, "" for a folder
_FORMS = [("fp32", ""), ("int8", ""), ("int4", ""), ("keep", "Q4_0")]
_ROWS = {"model": "layer_state.0", "speculator": "/module/embed_tokens/Embedding_output_0"}
_TOKENS = np.array([5, 7, 9, 5])


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("precision", "kind"), _FORMS)
def test_rows_are_those_of_the_target_and_stored_once(precision: str, kind: str, is_tied: bool, tmp_path: Path) -> None:
    source = _target(kind, is_tied, tmp_path)
    write_eagle3(tmp_path / "lent", {"hidden_size": HIDDEN_SIZE}, lends_embedding=True)
    package = _exported(source, tmp_path / "lent", tmp_path / "out", precision)
    own = [name for name, location in _tables(package).items() if location == "speculator.onnx.data"]
    assert own == []
    model, speculator = (_embedded(package, name) for name in ("model", "speculator"))
    np.testing.assert_array_equal(speculator, model)


@pytest.mark.long
@pytest.mark.parametrize(("precision", "kind"), [("int8", ""), ("int4", ""), ("keep", "Q8_0")])
def test_drafts_are_nearly_those_beside_a_copy_of_the_embedding(precision: str, kind: str, tmp_path: Path) -> None:
    source = _target(kind, True, tmp_path)
    for name in ("lent", "copied"):
        write_eagle3(tmp_path / name, {"hidden_size": HIDDEN_SIZE}, lends_embedding=True)
    tensors = load_file(tmp_path / "copied" / "model.safetensors")
    tensors["embed_tokens.weight"] = load_file(tmp_path / "source" / "model.safetensors")["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "copied" / "model.safetensors")
    lent, copied = (
        _exported(source, tmp_path / name, tmp_path / f"{name}.out", precision) for name in ("lent", "copied")
    )
    assert "speculator.onnx.data" in _tables(copied).values()  # as packages had it that were exported before
    assert lent.path("speculator.onnx.data").stat().st_size + VOCAB_SIZE * HIDDEN_SIZE <= (
        copied.path("speculator.onnx.data").stat().st_size
    )
    one, other = _guesses(lent), _guesses(copied)
    spread = float(np.abs(other.next_states).max())
    np.testing.assert_allclose(one.next_states, other.next_states, atol=(0.2 if precision == "int4" else 0.05) * spread)


@pytest.mark.long
def test_a_layer_for_later_tokens_keeps_to_its_logit_head_where_the_target_is_tied(tmp_path: Path) -> None:
    source = build_tiny_model("qwen3_5_text", tmp_path / "model")
    add_mtp(source, "qwen3_5_text")
    package = _exported(source, "auto", tmp_path / "out", "int8")
    assert set(_tables(package).values()) == {"model.onnx.data"}
    assert not any(name.startswith("target.") for name in _tables(package))


def _target(kind: str, is_tied: bool, folder: Path) -> Path:
    name = "llama" if is_tied else "mistral"
    if not kind:
        return build_tiny_model(name, folder / "source", tie_word_embeddings=is_tied)
    model = build_source(name, folder / "source")
    return write_model(model, folder / "model.gguf", GGMLQuantizationType[kind])


def _exported(source: Path, speculator: Path | str, out: Path, precision: str) -> ModelPackage:
    export_model(source, out, ExportOptions(precision, check="quick", speculator=speculator))
    return ModelPackage.open(out)


def _tables(package: ModelPackage) -> dict[str, str]:
    """The files of a speculator's large tensors with a row for each token, by their names."""
    tensors = [value.const_value for value in ir.load(package.path("speculator.onnx")).graph.initializers.values()]
    stored = [each for each in tensors if isinstance(each, ir.ExternalTensor) and each.nbytes >= 1 << 13]
    return {str(each.name): str(each.location) for each in stored if each.shape.numpy()[0] == VOCAB_SIZE}


def _embedded(package: ModelPackage, graph: str) -> npt.NDArray[np.float32]:
    """What a graph makes of token ids, before all else: (B, N, E)."""
    model = ir.load(package.path(f"{graph}.onnx"))
    rows = next(value for node in model.graph for value in node.outputs if value.name == _ROWS[graph])
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    part = ir.Model(
        ir.convenience.extract(model.graph, [ids], [rows]),
        ir_version=model.ir_version,
        functions=[function.clone() for function in model.functions.values()],
    )
    content = ir.to_proto(part).SerializeToString()
    session = open_session(content, 1, native_library(), package.folder)
    found: npt.NDArray[np.float32] = session.run(None, {"input_ids": np.arange(VOCAB_SIZE)[None]})[0]
    return found


def _guesses(package: ModelPackage) -> PassOutput:
    part = package.manifest.speculator
    assert part is not None
    states = np.random.default_rng(0).normal(size=(len(_TOKENS), 3 * HIDDEN_SIZE)).astype(np.float32)
    seen = np.tri(len(_TOKENS), dtype=bool)
    none = np.zeros((0, part.hidden_size), np.float32)
    return GraphRunner(package.folder, part, len(_TOKENS)).run(
        PassInputs(_TOKENS, np.arange(len(_TOKENS)), seen, states, none)
    )
