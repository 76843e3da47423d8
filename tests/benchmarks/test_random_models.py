"""Models of random weights of real sizes, and what is modelled of their passes."""

import json
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from benchmarks.passes.__main__ import compared, curves_of
from benchmarks.passes.contenders import GgufContender, PackageContender, contender
from benchmarks.passes.modelling import modelled, replay_reader_edge
from benchmarks.random_models import checkpoint as random_checkpoint
from benchmarks.random_models.checkpoint import DEMO, SHAPES, TensorShapes, qwen2, write_checkpoint
from benchmarks.random_models.gguf_file import random_blocks, typed_tensors, write_gguf
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.config import config_of
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_runtime import GenerationStats


def tiny(**changes: object) -> Qwen2Config:
    return qwen2(64, 6, 4, 2, 96, vocab_size=6144, **changes)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 1 << 18])
def test_the_folder_loads_in_transformers(ties: bool, shard_bytes: int, tmp_path: Path) -> None:
    num_parameters = write_checkpoint(tiny(tie_word_embeddings=ties), tmp_path / "out", DEMO, shard_bytes)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True, dtype="auto")
    model, report = loaded
    assert not any(report.values())
    assert model.dtype == torch.bfloat16
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == ties
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert (tmp_path / "out" / "model.safetensors.index.json").exists() == (shard_bytes < 1 << 20)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")("Two words.", return_tensors="pt")
    with torch.no_grad():
        outputs = model(**tokens, output_hidden_states=True)
    assert 0.1 < outputs.logits.std() < 10
    assert all(state.isfinite().all() and state.std() < 100 for state in outputs.hidden_states)


def test_shards_are_of_bounded_size(tmp_path: Path) -> None:
    write_checkpoint(tiny(), tmp_path / "out", DEMO, shard_bytes := 1 << 18)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert {file.name for file in files} == set(index["weight_map"].values())
    assert len(files) > 2
    for file in files:
        with safe_open(file, "pt") as tensors:
            num_tensors = len(tensors.keys())
        assert num_tensors == 1 or file.stat().st_size < shard_bytes + 4096


def test_memory_does_not_grow_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_checkpoint, "CHUNK_VALUES", 1 << 14)
    shapes: TensorShapes = {f"{layer}.weight": (1 << 7, 1 << 10) for layer in range(8)}
    shapes["wide.weight"] = (1 << 6, 1 << 14)
    tracemalloc.start()
    random_checkpoint.write_shard(tmp_path / "shard", shapes, np.random.default_rng(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "shard").stat().st_size > 4 << 20
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [("qwen2.5-0.5b", 494), ("qwen2.5-1.5b", 1544), ("qwen2.5-3b", 3086), ("qwen2.5-7b", 7616)],
)
def test_shapes_have_the_published_numbers_of_parameters(name: str, num_parameters: int) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SHAPES[name])
    assert round(model.num_parameters() / 1e6) == num_parameters


TINY = qwen2(256, 8, 4, 2, 512, vocab_size=6200, tie_word_embeddings=False)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("qwen2.5-0.5b", {"Q5_0": 132, "F32": 121, "Q8_0": 13, "Q6_K": 12, "Q4_K": 12}),
        ("qwen2.5-3b", {"Q4_K": 216, "F32": 181, "Q6_K": 37}),
    ],
)
def test_types_are_those_of_the_files_that_llama_cpp_made_of_these_shapes(name: str, counts: dict[str, int]) -> None:
    assert Counter(kind.name for _, _, kind in typed_tensors(SHAPES[name])) == counts


def test_the_file_is_read_with_the_config_it_was_written_for(tmp_path: Path) -> None:
    num_parameters = write_gguf(TINY, path := tmp_path / "tiny.gguf", DEMO)
    file = GgufFile.open(path)
    assert sum(np.prod(tensor.shape) for tensor in file.tensors.values()) == num_parameters
    config = config_of(file)
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"):
        assert config[name] == getattr(TINY, name), name
    assert config["tie_word_embeddings"] is False
    tokenizer = find_source(path, 128).load_tokenizer(TINY.vocab_size)
    assert tokenizer.encode("Two words.") == Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode("Two words.").ids


def test_activations_stay_finite(tmp_path: Path) -> None:
    write_gguf(TINY, tmp_path / "tiny.gguf", DEMO)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    model = AutoModelForCausalLM.from_config(TINY, dtype=torch.float32)
    for parameter, (name, _, kind) in zip(model.parameters(), typed_tensors(TINY), strict=True):
        parameter.data[...] = torch.tensor(gguf.dequantize(stored[name].data, kind))
    with torch.no_grad():
        logits = model(torch.arange(20)[None]).logits
    assert 0.1 < logits.std() < 10


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_weights_are_spread_as_those_of_the_checkpoints(name: str) -> None:
    rows = random_blocks(BLOCK_TYPES[name], 64, 1024, np.random.default_rng(0))
    weights = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    assert weights.shape == (64, 1024)
    assert weights.std() == pytest.approx(1 / 32, rel=0.1)
    assert abs(weights.mean()) < 0.2 / 32


def passes(by_width: dict[int, int], num_tokens: int) -> GenerationStats:
    num_steps = sum(by_width.values())
    return GenerationStats(
        num_steps=num_steps, num_accepted_tokens=num_tokens - num_steps, steps_by_width=Counter(by_width)
    )


def test_modelled_time_weighs_passes_by_their_width() -> None:
    replay = passes({1: 2, 3: 1}, num_tokens=5)
    result = modelled(replay, {1: 1.0, 2: 1.5, 4: 2.5})  # a pass of 3 lies between those of 2 and 4
    assert result.token_s == pytest.approx((2 * 1.0 + 2.0) / 5)
    assert result.speed_up == pytest.approx(1.0 / 0.8)
    assert result.acceptance_length == pytest.approx(5 / 3)


def test_time_spent_drafting_counts() -> None:
    replay = passes({1: 4}, num_tokens=4)
    assert modelled(replay, {1: 1.0}, drafting_s=4.0).speed_up == pytest.approx(0.5)


def test_widths_beyond_the_measured_ones_are_no_guess() -> None:
    with pytest.raises(ValueError, match="pass of 9 tokens was not measured, 8 at most"):
        modelled(passes({9: 1}, num_tokens=9), {1: 1.0, 8: 2.0})


def test_reader_edge_drafts_wide_only_where_width_is_cheap() -> None:
    text = list(range(10, 60))
    request = RecordedRequest("copy", [RecordedTurn(text + text, [*text, 5])])
    cheap = replay_reader_edge([request], {1: 1.0, 16: 1.0})
    dear = replay_reader_edge([request], {1: 1.0, 16: 100.0})
    assert cheap.num_decoded_tokens == dear.num_decoded_tokens == 51
    assert cheap.acceptance_length > 4
    assert max(dear.steps_by_width) == 1
    assert min(dear.prefill_s, dear.draft_s, dear.learn_s) > 0


def test_contenders_are_compared_over_the_passes_of_one_past() -> None:
    figures = {
        "slow": {"pasts": {"64": {"pass_s": {"1": [9.0]}}, "512": {"pass_s": {"1": [2.0, 4.0, 3.0], "2": [3.0]}}}},
        "fast": {"pasts": {"64": {"pass_s": {}}, "512": {"pass_s": {"1": [1.5], "2": [1.5]}}}},
        "failed": {"pasts": {"64": {"pass_s": {}}}},
    }
    curves = curves_of(figures, 512)
    assert curves == {"slow": {1: 3.0, 2: 3.0}, "fast": {1: 1.5, 2: 1.5}}
    assert curves_of(figures, 64) == {"slow": {1: 9.0}}
    request = RecordedRequest("copy", [RecordedTurn(list(range(10, 30)), list(range(10, 30)))])
    rows = compared({"copies": [request]}, curves)
    assert rows[0] == "| drafted tokens/s | slow | fast |"
    assert all("(2.00)" in row for row in rows[-2:])
    assert [row.split(" | ")[0] for row in rows[-2:]] == ["| copies", "| mean"]


def test_contenders_are_packages_and_files_by_name(demo_folder: Path, tmp_path: Path) -> None:
    ours = contender(f"ours={demo_folder}", tmp_path)
    assert isinstance(ours, PackageContender)
    assert (ours.name, ours.model("")) == ("ours", str(demo_folder.resolve()))
    file = tmp_path / "model.gguf"
    file.touch()
    theirs = contender(f"theirs={file}@{sys.executable}", tmp_path)
    assert isinstance(theirs, GgufContender)
    assert (theirs.name, theirs.model(""), theirs.python) == ("theirs", str(file.resolve()), Path(sys.executable))
    for text in (str(demo_folder), f"={demo_folder}", f"ours={tmp_path}", f"theirs={file}", f"theirs={file}@nowhere"):
        with pytest.raises(ValueError, match="is not NAME="):
            contender(text, tmp_path)
    named = contender(f"theirs={file}@{sys.executable},openvino-genai", tmp_path)
    assert (theirs.runtime.name, named.runtime.name) == ("llama.cpp", "openvino-genai")
    with pytest.raises(ValueError, match="no runtime 'tar'; there are reader-edge, "):
        contender(f"theirs={file}@{sys.executable},tar", tmp_path)
