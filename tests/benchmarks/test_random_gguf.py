"""Random GGUF files: Q4_K_M as llama.cpp would write it, with weights of a sensible spread."""

from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from benchmarks.random_models.checkpoint import DEMO, SHAPES, qwen2
from benchmarks.random_models.gguf_file import random_blocks, typed_tensors, write_gguf
from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.config import config_of
from reader_edge_export.sources.gguf.gguf_file import GgufFile

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
