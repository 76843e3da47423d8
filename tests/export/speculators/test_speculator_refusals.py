"""Speculators of GGUF files, and those that are refused in one sentence before weights of the target are read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator, TargetSizes
from reader_edge_export.speculators.networks import MtpModule
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ConfigError, ExportError, ReaderEdgeError, UnsupportedArchitectureError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import TinyModel
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.speculators.speculator_folders import (
    DRAFT_VOCAB_SIZE,
    LAYER,
    mtp_module,
    write_eagle3,
    write_plain_eagle3,
)
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
    return write_model(model, folder / "model.gguf", values=values, tensors=tensors, kinds=kinds)


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


@pytest.mark.long
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


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def _sets(**values: Any) -> Change:
    return lambda config, tensors: config.update(values)


def _layer(**values: Any) -> Change:
    return lambda config, tensors: config["transformer_layer_config"].update(values)


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Change:
    def apply(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed

    return apply


def _whole(offset: int) -> Change:
    """All of the target's tokens, and a map that leads each so far from itself, around the end."""

    def apply(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        ids = torch.arange(VOCAB_SIZE)
        config["draft_vocab_size"] = VOCAB_SIZE
        tensors["lm_head.weight"] = torch.ones(VOCAB_SIZE, tensors["lm_head.weight"].shape[1])
        tensors["d2t"], tensors["t2d"] = (ids + offset) % VOCAB_SIZE - ids, torch.ones(VOCAB_SIZE, dtype=torch.bool)

    return apply


def _twice(offsets: torch.Tensor) -> torch.Tensor:
    offsets[1] = offsets[0] - 1
    return offsets


_REFUSED: dict[str, tuple[Change, str]] = {
    "another vocabulary": (_layer(vocab_size=VOCAB_SIZE + 1), "vocabulary of 321, and the model has 320"),
    "a vocabulary beyond the target's": (_sets(draft_vocab_size=1 << 50), "and the model has 320"),
    "another hidden size": (_sets(target_hidden_size=128), "hidden states of 128, and the model has 64"),
    "a number of a thousand digits": (_sets(draft_vocab_size=10**1000), "000...000"),
    "a state of a thousand digits": (_sets(eagle_aux_hidden_state_layer_ids=[10**1000, 0, 1]), "000...000"),
    "too few states": (_sets(eagle_aux_hidden_state_layer_ids=[0, 1]), "joins 192 numbers of its target, where 2"),
    "a state beyond the last layer": (_sets(eagle_aux_hidden_state_layer_ids=[0, 1, 4]), "0, 1, 4, which must be"),
    "a state twice": (_sets(eagle_aux_hidden_state_layer_ids=[0, 1, 1]), "0, 1, 1, which must be"),
    "no states given": (_sets(eagle_aux_hidden_state_layer_ids=None), "does not say which states"),
    "states of no numbers": (_sets(eagle_aux_hidden_state_layer_ids=["a"]), "a list of at most"),
    "more layers than tensors": (_layer(model_type="qwen3", num_hidden_layers=1 << 40), "correct num_hidden_layers"),
    "layers of another kind": (_layer(model_type="gemma2"), "of the type 'gemma2'"),
    "a window": (_layer(model_type="qwen3", use_sliding_window=True, sliding_window=8), "see a window of tokens"),
    "heads that do not fit": (_layer(num_key_value_heads=3), "correct them"),
    "a key of unknown meaning": (_sets(turns_twice=True), "sets 'turns_twice' to True"),
    "both norms": (_sets(norm_before_fc=True, fc_norm=True), "both norm_before_fc and fc_norm"),
    "P-EAGLE": (_sets(speculators_model_type="peagle"), "of the format P-EAGLE"),
    "a format that is no word": (_sets(speculators_model_type=["eagle3"]), "of the format"),
    "no map": (_tensor("d2t", lambda _: None), "lacks d2t"),
    "a map out of the vocabulary": (_tensor("d2t", lambda d2t: d2t + VOCAB_SIZE), "out of the 320 tokens"),
    "a map below zero": (_tensor("d2t", lambda d2t: d2t - VOCAB_SIZE), "out of the 320 tokens"),
    "a map that wraps around": (_tensor("d2t", lambda d2t: d2t * 0 + (1 << 63) - 1), "out of the 320 tokens"),
    "a token twice": (_tensor("d2t", _twice), "twice in d2t"),
    "a map of fractions": (_tensor("d2t", lambda d2t: d2t.float()), "must be (100,) whole numbers"),
    "maps that differ": (_tensor("t2d", lambda t2d: ~t2d), "contradict each other"),
    "a map beside all tokens": (_whole(1), "has all 320 tokens of its target and maps some of them to others"),
    "a map of tokens that it lacks": (
        lambda config, tensors: (_whole(0)(config, tensors), tensors["t2d"][3:4].fill_(False))[0],
        "has all 320 tokens of its target and maps some",
    ),
    "angles of longer texts": (
        _layer(rope_scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=32),
        "rotary embeddings of the kind 'dynamic', which change as a text grows",
    ),
    "two kinds of angles": (
        _layer(
            rope_scaling={"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
            original_max_position_embeddings=32,
            max_position_embeddings=128,
        ),
        "rotary embeddings of the kind 'longrope'",
    ),
    "a layer missing": (_tensor("layers.0.mlp.up_proj.weight", lambda _: None), "lack layers.0.mlp.up_proj.weight"),
    "a matrix of another shape": (
        _tensor("norm.weight", lambda norm: norm[:-1]),
        "of the shape (47,) instead of (48,)",
    ),
    "a matrix of integers": (_tensor("fc.weight", lambda fc: fc.to(torch.int8)), "as I8"),
    "no embedding, which is not the target's": (_tensor("embed_tokens.weight", lambda _: None), "lacks embed_tokens"),
    "no head for its own vocabulary": (
        lambda config, tensors: (tensors.pop("lm_head.weight"), _layer(hidden_size=64)(config, tensors))[1],
        f"lacks lm_head.weight for its own vocabulary of {DRAFT_VOCAB_SIZE}",
    ),
    "a tensor of no place": (lambda config, tensors: tensors.update({"extra.weight": torch.ones(3)}), "extra.weight"),
}


@pytest.mark.long
def test_a_map_of_all_tokens_to_themselves_is_no_map(tiny_model: TinyModel, tmp_path: Path) -> None:
    write_eagle3(tmp_path / "speculator")
    change_folder(tmp_path / "speculator", _whole(0))
    options = ExportOptions("fp32", check="none", speculator=tmp_path / "speculator")
    export_model(tiny_model("llama"), tmp_path / "out", options)
    part = ModelPackage.open(tmp_path / "out").manifest.speculator
    assert part is not None
    assert part.draft_vocab_size == VOCAB_SIZE


def test_no_name_is_not_the_current_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["export", str(tmp_path), str(tmp_path / "out"), "--speculator", ""])
    assert result.exit_code == 2
    assert result.stderr == "Error: speculator is '', which names no folder: give one, or leave speculator out.\n"


@pytest.mark.parametrize("case", _REFUSED)
def test_misfits_are_refused_before_reading(
    case: str, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = _REFUSED[case]
    write_eagle3(tmp_path / "speculator")
    change_folder(tmp_path / "speculator", change)
    assert words in refusal_of(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", monkeypatch)


def test_older_eagles_are_refused(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plain_eagle3(tmp_path / "speculator")

    def make_older(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del config["draft_vocab_size"]
        for name in [name for name in tensors if name.startswith("midlayer.")]:
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    change_folder(tmp_path / "speculator", make_older)
    result = refusal_of(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", monkeypatch)
    assert "EAGLE-1 or EAGLE-2" in result


def test_pickles_are_refused(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "speculator"
    write_eagle3(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "a pickle that may run code" in refusal_of(tiny_model("llama"), folder, tmp_path / "out", monkeypatch)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "No speculator at '"),
        ([], "holds no speculator"),
        (["config.json"], "holds no speculator"),
        (["config.json", "model.safetensors"], "holds no speculator"),
    ],
    ids=str,
)
def test_what_a_speculators_folder_is_comes_with_the_error(
    tiny_model: TinyModel, files: list[str] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "speculator"
    if files is not None:
        folder.mkdir()
    for name in files or ():
        shutil.copy(tiny_model("llama") / name, folder)
    result = refusal_of(tiny_model("llama"), folder, tmp_path / "out", monkeypatch)
    assert words in result
    assert "give a speculator's folder" in result


def test_weights_that_give_no_numbers_are_refused_and_leave_nothing(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = tmp_path / "speculator"
    write_eagle3(folder)
    change_folder(folder, _tensor("layers.0.mlp.down_proj.weight", lambda weight: weight * 0 + 3e38))
    with pytest.raises(ExportError, match="What the speculator computes is too large"):
        export_model(tiny_model("llama"), tmp_path / "out", ExportOptions("fp32", check="quick", speculator=folder))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_model_without_mtp_layers_has_no_own_speculator(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model_type in ("llama", "qwen3_5_text"):
        assert "has no layers for later tokens" in refusal_of(
            tiny_model(model_type), "auto", tmp_path / "out", monkeypatch
        )


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp16"},
        {"precision": "bf16"},
        {"precision": "fp32", "attention": "fast"},
        {"attention": "portable"},
        {"attention": "portable-exact"},
        {"engine": "iree", "attention": "portable-exact"},
    ],
    ids=str,
)
def test_packages_that_report_no_states_have_no_speculator(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="has no states that a speculator could read"):
        ExportOptions(**options, speculator="auto")  # type: ignore[arg-type]


def change_folder(folder: Path, change: Change) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")


def refusal_of(source: Path, speculator: Path | str, out: Path, patch: pytest.MonkeyPatch) -> str:
    """The error, with no package left and no weights of the target read."""
    patch.setattr("reader_edge_export.sources.folder.hugging_face.HuggingFaceSource.open_model", _never)
    with pytest.raises(ReaderEdgeError) as error:
        export_model(source, out, ExportOptions("fp32", check="none", speculator=speculator))
    assert [path.name for path in out.parent.iterdir()] in ([], ["speculator"])
    return str(error.value)


def _never(_: object) -> None:
    raise AssertionError("the target was read")


assert LAYER["hidden_size"] != 64  # so that no matrix of the target fits
