"""Adapters that are for another model, of another kind or damaged are refused in a sentence, before they are read."""

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.adapters.adapter import find_adapter
from reader_edge_export.sources.adapters.merged_weights import merged
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import AdapterError, GgufError, UnsupportedArchitectureError
from tests.export.conftest import TinyModel
from tests.export.gguf_models import build_source, write_model
from tests.export.sources.adapters.adapter_files import peft_config, peft_tensors, write_gguf_adapter
from tests.fuzz.mutation import memory_limit

MODULE = "model.layers.0.self_attn.q_proj"  # (64, 64) of the tiny llama
TENSOR = "blk.0.attn_q.weight"
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], object]


def _good(module: str = MODULE, num_outputs: int = 64, num_inputs: int = 64, rank: int = 8) -> Tensors:
    return peft_tensors({module: (np.ones((num_outputs, rank), "f4"), np.ones((rank, num_inputs), "f4"))})


def _key(part: str, module: str = MODULE) -> str:
    return f"base_model.model.{module}.{part}"


def _renamed(part: str) -> Change:
    return lambda tensors: tensors.update({_key(part): tensors.pop(_key("lora_B.weight"))})


def _only(module: str, num_outputs: int = 64, num_inputs: int = 64) -> Change:
    def change(tensors: Tensors) -> None:
        tensors.clear()
        tensors.update(_good(module, num_outputs, num_inputs))

    return change


def _beside(name: str, *shape: int) -> Change:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


SETTINGS: dict[str, Mapping[str, Any]] = {  # by words of the refusal
    "'peft_type' to 'LOHA', which is not read here: merge it into its model": {"peft_type": "LOHA"},
    "'peft_type' to None": {"peft_type": None},
    r"'modules_to_save' to \['lm_head'\]": {"modules_to_save": ["lm_head"]},
    "'bias' to 'all'": {"bias": "all"},
    "'lora_bias' to True": {"lora_bias": True},
    r"'trainable_token_indices' to \[5\]": {"trainable_token_indices": [5]},
    "'target_parameters' to": {"target_parameters": ["mlp.experts.gate_up_proj"]},
    "'layer_replication' to": {"layer_replication": [[0, 2], [1, 2]]},
    "'alora_invocation_tokens' to": {"alora_invocation_tokens": [1]},
    "'use_qalora' to True": {"use_qalora": True},
    "'arrow_config' to": {"arrow_config": {"top_k": 2}},
    "'kasa_config' to": {"kasa_config": {"beta": 1e-4}},
    "'monteclora_config' to": {"monteclora_config": {"sample": 1}},
    "'init_lora_weights' to 'pissa_niter_4'": {"init_lora_weights": "pissa_niter_4"},
    "'init_lora_weights' to 'loftq'": {"init_lora_weights": "loftq"},
    "'a key of tomorrow' to 3": {"a key of tomorrow": 3},
    "'r' to 0": {"r": 0},
    "'r' to 'eight'": {"r": "eight"},
    "adapter_config.json' is not valid JSON": {"lora_alpha": float("nan")},
    "'lora_alpha' to 1000": {"lora_alpha": 10**400},
    "'use_rslora' to 'yes'": {"use_rslora": "yes"},
    r"'rank_pattern' to \[\]": {"rank_pattern": []},
    "'rank_pattern' to {'q_proj': -1}": {"rank_pattern": {"q_proj": -1}},
    r"'alpha_pattern' to \{'\(\.\*\)\+q'": {"alpha_pattern": {"(.*)+q": 4}},
    "in rank 8, where its adapter_config.json says 16": {"r": 16},
    "in rank 8, where its adapter_config.json says 2": {"rank_pattern": {"self_attn.q_proj": 2}},
    "lacks the lora_magnitude_vector of model.layers.0": {"use_dora": True},
}
TENSORS: dict[str, Change] = {
    "lacks the lora_B.weight": lambda tensors: tensors.pop(_key("lora_B.weight")),
    "has a lora_magnitude_vector of model": _beside(_key("lora_magnitude_vector"), 64),
    "holds no factors": lambda tensors: tensors.clear(),
    "holds 'base_model.model.model.norm.weight', which is no factor": _beside(_key("weight", "model.norm"), 64),
    r"lora_B.bias', which is no factor": _beside(_key("lora_B.bias"), 64),
    r"lora_B.default.weight', which is no factor": _renamed("lora_B.default.weight"),
    r"lora_embedding_A', which is no factor": _beside(_key("lora_embedding_A", "model.embed_tokens"), 8, 320),
    "as I32, which is no number": lambda tensors: tensors.update(
        {_key("lora_B.weight"): torch.ones((64, 8), dtype=torch.int32)}
    ),
    "embeddings or the logit head": _only("lm_head", 320),
    "layers.7.self_attn.q_proj', which the model does not have: give the model .* on, 'tiny'": _only(
        "model.layers.7.self_attn.q_proj"
    ),
    "'model.layers.0.self_attn.qkv', which the model does not have": _only("model.layers.0.self_attn.qkv"),
    "'model.layers.0.input_layernorm', which is no matrix": _only("model.layers.0.input_layernorm"),
    "experts of a mixture": _only("model.layers.0.mlp.experts.3.down_proj"),
    r"shapes \(128, 8\) and \(8, 64\), where the model has \(64, 64\)": _only(MODULE, 128),
    r"shapes \(64, 8\) and \(8, 48\), where": _only(MODULE, 64, 48),
    r"shapes \(64, 4\) and \(8, 64\), where": lambda tensors: tensors.update(
        {_key("lora_B.weight"): torch.ones(64, 4)}
    ),
    r"shapes \(64, 8, 1\) and": lambda tensors: tensors.update({_key("lora_B.weight"): torch.ones(64, 8, 1)}),
    r"shapes \(64, 0\) and \(0, 64\)": lambda tensors: tensors.update(_good(rank=0)),
    "by two names": lambda tensors: tensors.update(_good("language_model.model.layers.0.self_attn.q_proj")),
}


@dataclass(frozen=True)
class Opened:
    """A model of which adapters are tried."""

    source: Source
    model: SourceModel

    @classmethod
    def of(cls, folder: Path) -> "Opened":
        source = find_source(folder, None)
        return cls(source, source.open_model())

    def refuses(self, adapter: Path, words: str) -> None:
        with pytest.raises((AdapterError, GgufError), match=rf"^'{adapter}[^\n]*{words}[^\n]*\.$"):
            merged(self.model, find_adapter(adapter, self.source))


@pytest.fixture(scope="module")
def llama(tiny_model: TinyModel) -> Opened:
    return Opened.of(tiny_model("llama"))


def _written(folder: Path, tensors: Tensors, **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(8) | config))
    return folder


def test_settings_that_are_not_read_are_named(llama: Opened, tmp_path: Path) -> None:
    for number, (words, config) in enumerate(SETTINGS.items()):
        llama.refuses(_written(tmp_path / str(number), _good(), **config), words)


def test_factors_that_do_not_fit_are_named(llama: Opened, tmp_path: Path) -> None:
    for number, (words, change) in enumerate(TENSORS.items()):
        tensors = _good()
        change(tensors)
        llama.refuses(_written(tmp_path / str(number), tensors), words)
    lengths = _good() | {_key("lora_magnitude_vector"): torch.ones(1, 64)}
    short = _written(tmp_path / "short", lengths, use_dora=True)
    llama.refuses(short, r"lengths of the shape \(1, 64\) for the 64 outputs")


def _cut(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _pickled(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")


def _linked(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.safetensors").symlink_to("/dev/zero")


FILES: dict[str, Callable[[Path], object]] = {
    "config.json' is missing: give the folder of an adapter as PEFT": lambda adapter: (
        adapter / "adapter_config.json"
    ).unlink(),
    "is not valid JSON": lambda adapter: (adapter / "adapter_config.json").write_text("{"),
    "is missing: give the folder of an adapter": lambda adapter: (adapter / "adapter_model.safetensors").unlink(),
    "a pickle that may run code: save the adapter as safetensors": _pickled,
    "is a link to a device": _linked,
}


def test_folders_that_lack_something_are_refused(llama: Opened, tmp_path: Path) -> None:
    for number, (words, spoil) in enumerate(FILES.items()):
        adapter = _written(tmp_path / str(number), _good())
        spoil(adapter)
        llama.refuses(adapter, words)
    cut = _written(tmp_path / "cut", _good())
    _cut(cut)
    with pytest.raises(AdapterError, match="cannot be loaded"):
        find_adapter(cut, llama.source)
    for path in (tmp_path / "nowhere", cut / "adapter_model.safetensors"):
        with pytest.raises(
            AdapterError, match=f"No adapter at '{path}': give a folder that PEFT wrote, or a GGUF file"
        ):
            find_adapter(path, llama.source)


@pytest.mark.parametrize(
    ("trained_on", "given", "is_refused"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3-8B", True),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3:4b", True),
        ("HuggingFaceTB/SmolLM2-360M", "smollm2:135m", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2:135m", False),
        ("unsloth/Qwen3-4B-unsloth-bnb-4bit", "Qwen3-4B-Q4_K_M.gguf", False),
        ("google/gemma-3-1b-it-qat-q4_0-unquantized", "gemma3:1b", False),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b", False),
        ("C:\\models\\qwen2.5-0.5b", "Qwen2.5-0.5B-Instruct", False),
        ("./checkpoint-500", "llama3:8b", False),
        ("", "llama3:8b", False),
    ],
)
def test_another_model_is_known_by_the_numbers_in_its_name(
    trained_on: str, given: str, is_refused: bool, llama: Opened, tmp_path: Path
) -> None:
    source = replace(llama.source, name=given)
    adapter = _written(tmp_path / "adapter", _good(), base_model_name_or_path=trained_on)
    if not is_refused:
        assert find_adapter(adapter, source).base == trained_on
        return
    with pytest.raises(AdapterError, match=f"was trained on '{trained_on}' and not on '{given}'"):
        find_adapter(adapter, source)


_UP, _DOWN = f"{TENSOR}.lora_b", f"{TENSOR}.lora_a"
_PAIR: dict[str, Array] = {_UP: np.ones((64, 8), "f4"), _DOWN: np.ones((8, 64), "f4")}
GGUF: dict[str, tuple[dict[str, Any], dict[str, Array]]] = {  # metadata and tensors, by words of the refusal
    "has the general.type 'model', where 'adapter' is read": ({"general.type": "model"}, _PAIR),
    "has the adapter.type 'control_vector', where 'lora'": ({"adapter.type": "control_vector"}, _PAIR),
    "from certain tokens on alone": ({"adapter.alora.invocation_tokens": [5]}, _PAIR),
    "adapter.lora.alpha as inf": ({"adapter.lora.alpha": float("inf")}, _PAIR),
    "adapter.lora.alpha as 'much'": ({"adapter.lora.alpha": "much"}, _PAIR),
    "holds no factors": ({}, {}),
    "one factor of 'blk.0.attn_q.weight' and lacks .lora_a": ({}, {_UP: _PAIR[_UP]}),
    "holds 'blk.0.attn_norm.weight', which is no factor": ({}, _PAIR | {"blk.0.attn_norm.weight": np.ones(64, "f4")}),
    "the type 26, which this version does not know": ({}, _PAIR | {_UP: np.ones((64, 8), "i4")}),
    "embeddings or the logit head": (
        {},
        {"token_embd.weight.lora_a": np.ones((8, 64), "f4"), "token_embd.weight.lora_b": np.ones((320, 8), "f4")},
    ),
    "'blk.9.attn_q.weight', which the model does not have": (
        {},
        {name.replace("blk.0", "blk.9"): array for name, array in _PAIR.items()},
    ),
    r"'a.nb', which the model does not have": ({}, {"a\nb.lora_a": _PAIR[_DOWN], "a\nb.lora_b": _PAIR[_UP]}),
    "a latent by head": ({}, {name.replace("_q.", "_k_b."): array for name, array in _PAIR.items()}),
    r"shapes \(64, 8\) and \(8, 32\), where": ({}, _PAIR | {_DOWN: np.ones((8, 32), "f4")}),
    "was trained on 'Llama 3.2 1B'": ({"general.base_model.0.name": "Llama 3.2 1B"}, _PAIR),
}


def test_gguf_files_that_are_no_adapters_of_the_model_are_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    llama = Opened.of(shutil.copytree(tiny_model("llama"), tmp_path / "llama3.2-3b"))
    for number, (words, (values, tensors)) in enumerate(GGUF.items()):
        llama.refuses(write_gguf_adapter(tmp_path / f"{number}.gguf", "llama", tensors, values), words)
    other = write_gguf_adapter(tmp_path / "other.gguf", "qwen2", _PAIR)
    with pytest.raises(AdapterError, match="is an adapter for 'qwen2', and the model is a llama"):
        find_adapter(other, llama.source)


def test_an_adapter_bears_the_name_of_its_model_s_files(tiny_model: TinyModel, tmp_path: Path) -> None:
    """GLM 4.7 Flash and DeepSeek V3 are deepseek2 there."""
    adapter = write_gguf_adapter(tmp_path / "adapter", "deepseek2", _PAIR)
    for model_type in ("glm4_moe_lite", "deepseek_v3"):
        find_adapter(adapter, find_source(tiny_model(model_type), None))
    llama = find_source(tiny_model("llama"), None)
    with pytest.raises(AdapterError, match="is an adapter for 'deepseek2', and the model is a llama"):
        find_adapter(adapter, llama)


def test_an_adapter_of_falcon_h1_is_of_weights_as_its_model_has_them(tmp_path: Path) -> None:
    """Converters multiply weights of files by factors of the config, and factors of adapters by the same."""
    file = write_model(build_source("falcon_h1", tmp_path / "tiny"), tmp_path / "tiny.gguf")
    adapters = _written(tmp_path / "adapter", _good()), write_gguf_adapter(tmp_path / "a.gguf", "falcon-h1", _PAIR)
    for path, (fits, other) in ((tmp_path / "tiny", adapters), (file, adapters[::-1])):
        source = find_source(path, None)
        find_adapter(fits, source)
        with pytest.raises(AdapterError, match=r"takes no adapter in a .* multiplied by factors of its config"):
            find_adapter(other, source)
    with pytest.raises(AdapterError, match=r"'tiny.gguf' takes no adapter in a folder: .* give the model as a folder"):
        export_model(file, tmp_path / "out", ExportOptions(takes_adapters=True))


def test_an_adapter_in_place_of_its_model_leads_to_the_option(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"but 'adapter': merge it .* `reader-edge export MODEL OUT --adapter FILE`"):
        find_source(write_gguf_adapter(tmp_path / "adapter.gguf", "llama", _PAIR), None)
    with pytest.raises(UnsupportedArchitectureError, match="`reader-edge export MODEL OUT --adapter FOLDER`"):
        find_source(_written(tmp_path / "adapter", _good()), None)


def test_a_rank_is_refused_where_it_is_no_use_to_any_matrix_of_a_model(llama: Opened, tmp_path: Path) -> None:
    words = r"in rank 513, where a matrix of \(64, 64\) has 64 at most"
    llama.refuses(_written(tmp_path / "folder", _good(rank=513), r=513), words)
    wide = {_UP: np.ones((64, 513), "f4"), _DOWN: np.ones((513, 64), "f4")}
    llama.refuses(write_gguf_adapter(tmp_path / "adapter.gguf", "llama", wide), words)
    usual = _written(tmp_path / "usual", _good(rank=512), r=512)  # as all matrices get, with a small one among them
    assert merged(llama.model, find_adapter(usual, llama.source))[1] == 1


def test_nothing_is_allocated_for_a_rank_that_the_file_does_not_hold(llama: Opened, tmp_path: Path) -> None:
    adapter = _written(tmp_path / "adapter", _good())
    path = adapter / "adapter_model.safetensors"
    size, header = struct.unpack_from("<Q", path.read_bytes()), path.read_bytes()[8:]
    given = header[: size[0]].replace(b"[64,8]", b"[64,8000000000]")
    path.write_bytes(struct.pack("<Q", len(given)) + given + header[size[0] :])
    with memory_limit(64 << 20), pytest.raises(AdapterError, match="cannot be loaded"):
        find_adapter(adapter, llama.source)
