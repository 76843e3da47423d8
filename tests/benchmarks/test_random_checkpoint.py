"""benchmarks.random_models.checkpoint: models of known shapes that need no download and little memory."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from benchmarks.random_models import checkpoint as random_checkpoint
from benchmarks.random_models.checkpoint import DEMO, SHAPES, TensorShapes, qwen2, write_checkpoint


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
