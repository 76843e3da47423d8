"""The layer for later tokens in a GGUF file, as llama.cpp's converters write it, is the one of the checkpoint."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator, TargetSizes
from reader_edge_export.speculators.mtp_module import MtpModule
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ExportError, ReaderEdgeError, UnsupportedArchitectureError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.speculators.speculator_folders import mtp_module
from tests.tiny_models import VOCAB_SIZE

MODEL_TYPES = ["qwen3_5_text", "qwen3_5_moe_text"]
NUM_LAYERS = 2
LATER = {  # of the module -> of llama.cpp
    "input_proj": gguf.MODEL_TENSOR.NEXTN_EH_PROJ,
    "token_layernorm": gguf.MODEL_TENSOR.NEXTN_ENORM,
    "hidden_layernorm": gguf.MODEL_TENSOR.NEXTN_HNORM,
    "final_layernorm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
    "embed_tokens": gguf.MODEL_TENSOR.NEXTN_EMBED_TOKENS,
    "lm_head": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_HEAD,
}


def later(module: MtpModule, architecture: str, lends: bool = True) -> dict[str, Array]:
    """Its tensors by their names in a file, behind the model's layers. lends: the target's matrices serve it too."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, NUM_LAYERS + 1)
    tensors: dict[str, Array] = {}
    for name, tensor in module.state_dict().items():
        values: Array = tensor.numpy()
        own = name.removeprefix("mtp_layers.0.")
        if own == "mlp.experts.gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            tensors |= {f"blk.{NUM_LAYERS}.ffn_gate_exps.weight": gate, f"blk.{NUM_LAYERS}.ffn_up_exps.weight": up}
            continue
        if own == "mlp.experts.down_proj":
            tensors[f"blk.{NUM_LAYERS}.ffn_down_exps.weight"] = values
            continue
        module_name = own.removesuffix(".weight")
        stored = names.get_name(f"model.layers.{NUM_LAYERS}.{module_name}")
        if module_name in LATER:
            stored = gguf.TENSOR_NAMES[LATER[module_name]].format(bid=NUM_LAYERS)
        if lends and name in ("embed_tokens.weight", "lm_head.weight"):
            continue
        values = values[0] if "shared_expert_gate" in own else values
        tensors[f"{stored}.weight"] = values + 1 if "norm" in own else values
    return {name: np.ascontiguousarray(values) for name, values in tensors.items()}


def file_of(model_type: str, folder: Path, tensors: dict[str, Array], num_later: int = 1, kind: str = "F32") -> Path:
    """A model's file with these tensors beside its own. kind: of those whose rows its blocks fit into."""
    architecture = GGUF_MODELS[model_type][0]
    model = build_source(model_type, folder / "source")
    values: dict[str, Any] = {
        f"{architecture}.block_count": NUM_LAYERS + num_later,
        f"{architecture}.nextn_predict_layers": num_later,
        f"{architecture}.attention.recurrent_layers": [True, False, *([False] * num_later)],
    }
    quantized = gguf.GGMLQuantizationType[kind]
    kinds = {name: quantized for name, each in tensors.items() if each.ndim > 1 and each.shape[-1] % 32 == 0}
    return write_model(model, folder / "source", folder / "model.gguf", values=values, tensors=tensors, kinds=kinds)


def opened(path: Path) -> OpenSpeculator:
    target = find_source(path, None)
    return OpenSpeculator.of(find_speculator("auto", target), TargetSizes.of(target))


@pytest.mark.parametrize("lends", [True, False], ids=["target's matrices", "matrices of its own"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_weight_of_the_layer_is_read(model_type: str, lends: bool, tmp_path: Path) -> None:
    module = mtp_module(model_type)
    found = opened(file_of(model_type, tmp_path, later(module, GGUF_MODELS[model_type][0], lends)))
    assert found.source.files == [tmp_path / "model.gguf"]
    assert found.lent == (("embed_tokens.weight", "lm_head.weight") if lends else ())
    read = {name for name, _ in module.named_parameters()} - set(found.lent)
    for name in read:
        wanted = module.get_parameter(name).detach().numpy()
        np.testing.assert_allclose(found.weights.read(name), wanted, atol=2e-7)
        rows = found.weights.rows(name, np.array([1, 0])) if wanted.ndim == 2 and len(wanted) > 1 else None
        if rows is not None:
            np.testing.assert_array_equal(rows, found.weights.read(name)[[1, 0]])
    assert len(read) >= 15


def test_experts_whose_gate_and_up_are_one_tensor_are_read_alike(tmp_path: Path) -> None:
    module = mtp_module("qwen3_5_moe_text")
    tensors = later(module, "qwen35moe")
    parts = [tensors.pop(f"blk.{NUM_LAYERS}.ffn_{part}_exps.weight") for part in ("gate", "up")]
    tensors[f"blk.{NUM_LAYERS}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    name = "mtp_layers.0.mlp.experts.gate_up_proj"
    wanted = module.get_parameter(name).detach().numpy()
    np.testing.assert_array_equal(opened(file_of("qwen3_5_moe_text", tmp_path, tensors)).weights.read(name), wanted)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_file_is_exported_with_its_own_layer_for_later_tokens(model_type: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = file_of(model_type, tmp_path, later(mtp_module(model_type), GGUF_MODELS[model_type][0]), kind="Q8_0")
    export_model(path, tmp_path / "out", ExportOptions("int8", check="quick", speculator="auto"))
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.speculator is not None
    assert (manifest.speculator.format, manifest.speculator.state_ids) == ("mtp", (NUM_LAYERS + 1,))
    assert manifest.speculator.draft_vocab_size == VOCAB_SIZE
    assert manifest.checks["speculator_error"] < 0.2


def test_a_layer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tensors = later(mtp_module("qwen3_5_text"), "qwen35")
    norm = f"blk.{NUM_LAYERS}.nextn.enorm.weight"
    other = {f"blk.{NUM_LAYERS}.ffn_gate_exps.weight": np.ones((2, 4, 64), "f4")}
    wrong = {
        "lack mtp_layers.0.token_layernorm.weight": {name: each for name, each in tensors.items() if name != norm},
        r"token_layernorm.weight' of the shape \(32,\) instead of \(64,\)": tensors | {norm: np.ones(32, "f4")},
        "holds blk.2.ffn_gate_exps.weight, for which": tensors | other,
    }
    for number, (words, each) in enumerate(wrong.items()):
        with pytest.raises(ExportError, match=words):
            opened(file_of("qwen3_5_text", tmp_path / str(number), each))


def test_tensors_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    plain, mixed = (later(mtp_module(kind), GGUF_MODELS[kind][0]) for kind in MODEL_TYPES)
    gate, up = (mixed[f"blk.{NUM_LAYERS}.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    both, query = f"blk.{NUM_LAYERS}.ffn_gate_up_exps.weight", f"blk.{NUM_LAYERS}.attn_q"
    joined = np.concatenate([gate, up], axis=1)
    odd = {name: each for name, each in mixed.items() if each is not gate and each is not up}
    bent = {**plain, f"blk.{NUM_LAYERS}.nextn.eh_proj.weight": np.ones((128, 64), "f4")}
    wrong = [
        (MODEL_TYPES[1], odd | {both: np.concatenate([joined, gate[:, :1]], axis=1)}, "an odd number"),
        (MODEL_TYPES[1], mixed | {both: joined}, "ffn_gate_exps.weight and blk.2.ffn_gate_up_exps.weight, which stand"),
        (MODEL_TYPES[0], plain | {query: plain[f"{query}.weight"]}, "attn_q and blk.2.attn_q.weight, which stand"),
        (MODEL_TYPES[0], bent, "which its metadata says: correct metadata"),
    ]
    for number, (model_type, tensors, words) in enumerate(wrong):
        with pytest.raises(ReaderEdgeError, match=words):
            opened(file_of(model_type, tmp_path / str(number), tensors))
    path = file_of(MODEL_TYPES[0], tmp_path / "more", plain, num_later=2)
    with pytest.raises(UnsupportedArchitectureError, match="has 2 layers for later tokens"):
        opened(path)  # of which one has tensors


def test_several_layers_for_later_tokens_are_refused(tmp_path: Path) -> None:
    tensors = later(mtp_module("qwen3_5_text"), "qwen35")
    second = {name.replace("blk.2.", "blk.3."): each for name, each in tensors.items()}
    path = file_of("qwen3_5_text", tmp_path, tensors | second, num_later=2)
    with pytest.raises(UnsupportedArchitectureError, match="has 2 layers for later tokens"):
        opened(path)


def test_a_file_without_them_says_so(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="has no layers for later tokens that could be read"):
        opened(file_of("qwen3_5_text", tmp_path, {}, num_later=0))
