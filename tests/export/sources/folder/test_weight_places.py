"""Tensors of a folder that its model has no place for are never left out without a word."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reader_edge_export.sources import blank_model
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.errors import ExportError
from tests.export.source_models import chain_logits, load_folder, load_model
from tests.tiny_models import build_tiny_model

IDS = list(range(3, 20))


def _add(folder: Path, **tensors: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | tensors, folder / "model.safetensors", {"format": "pt"})


def _change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight", "score.weight"]
)
def test_a_tensor_without_a_place_is_refused_by_its_name(name: str, source: Path) -> None:
    _add(source, **{name: torch.ones(64)})
    with pytest.raises(ExportError, match=rf"holds {name}, for which .* has no place"):
        load_folder(source)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"vocab_size": 1 << 40},
            r"embed_tokens\.weight' of the shape \(320, 64\) instead of \(1099511627776, 64\), which",
        ),
        ({"intermediate_size": 95}, r"down_proj\.weight' of the shape \(64, 96\) instead of \(64, 95\), which"),
        ({"num_key_value_heads": 4}, r"k_proj\.weight' of the shape \(32, 64\) instead of \(64, 64\), which"),
        ({"hidden_size": 10**30}, "hidden_size as 1000.*, which must be a whole number"),
    ],
)
def test_a_config_of_another_size_is_refused_before_memory_is_taken(
    changes: dict[str, int], words: str, source: Path
) -> None:
    _change_config(source, **changes)
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_folder(source)


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("lfm2", {"conv_L_cache": 1 << 40}, r"conv\.weight' of the shape .* of \(64, 1, 1099511627776\), which"),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 1 << 40}, r"conv1d\.weight' of the shape"),
        ("qwen3_5_text", {"linear_value_head_dim": 1 << 40}, "tables and norms take more than a gigabyte"),
        ("qwen3_5_text", {"linear_num_value_heads": 1 << 40}, "tables and norms take more than a gigabyte"),
        ("granitemoehybrid", {"mamba_d_conv": 1 << 40}, r"conv1d\.weight' of the shape"),
        ("granitemoehybrid", {"mamba_d_state": 1 << 40}, "tables and norms take more than a gigabyte"),
    ],
)
def test_a_recurrent_layer_of_another_size_is_refused_before_memory_is_taken(
    model_type: str, changes: dict[str, int], words: str, tmp_path: Path
) -> None:
    folder = build_tiny_model(model_type, tmp_path / "source")
    _change_config(folder, **changes)
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_folder(folder)


def test_a_model_that_is_larger_than_memory_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blank_model, "free_bytes", lambda: 1000)
    with pytest.raises(ExportError, match=r"takes .* GiB of memory in fp32.*end other programs"):
        load_folder(source)


def test_layers_that_the_config_does_not_count_are_refused(source: Path) -> None:
    _change_config(source, num_hidden_layers=1, layer_types=None)
    with pytest.raises(ExportError, match=r"holds model\.layers\.1\..* and 8 others, for which"):
        load_folder(source)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.0.attn.masked_bias"),
    ],
)
def test_tables_that_models_compute_themselves_are_passed_over(model_type: str, name: str, tmp_path: Path) -> None:
    source = build_tiny_model(model_type, tmp_path / "source")
    before = chain_logits(load_folder(source), IDS)
    _add(source, **{name: torch.ones(8)})
    assert torch.equal(chain_logits(load_folder(source), IDS), before)


@pytest.mark.parametrize("model_type", ["llama", "gemma", "gpt2"])
def test_a_head_of_its_own_is_used_even_where_the_config_ties_it(
    model_type: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = build_tiny_model(model_type, tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    embedding = next(weight for name, weight in weights.items() if name.endswith(("embed_tokens.weight", "wte.weight")))
    tied = chain_logits(load_model(find_source(source, None)), IDS)
    _add(source, **{"lm_head.weight": embedding.clone()})
    assert torch.equal(chain_logits(load_model(find_source(source, None)), IDS), tied)
    _add(source, **{"lm_head.weight": 2 * embedding})
    logits = chain_logits(load_model(find_source(source, None)), IDS)
    torch.testing.assert_close(logits, 2 * tied)


def test_a_head_that_is_not_there_is_missed_where_the_config_does_not_tie_it(source: Path) -> None:
    _change_config(source, tie_word_embeddings=False)
    with pytest.raises(ExportError, match=r"lack lm_head\.weight: fetch"):
        load_folder(source)


def test_an_output_embedding_alone_does_not_stand_for_the_input_embedding(source: Path) -> None:
    weights = load_file(source / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=r"lack model\.embed_tokens\.weight"):
        load_folder(source)


def test_weights_of_another_library_are_refused_by_its_name(source: Path) -> None:
    save_file(load_file(source / "model.safetensors"), source / "model.safetensors", {"format": "tf"})
    with pytest.raises(ExportError, match=r"in the layout 'tf', .* save the model with PyTorch"):
        find_source(source, None)


@pytest.mark.parametrize("name", ["norm.weight", "embed_tokens.weight", "layers.0.mlp.down_proj.weight"])
def test_two_tensors_for_the_same_weights_are_the_same_or_refused(name: str, source: Path) -> None:
    stored = load_file(source / "model.safetensors")[f"model.{name}"]
    expected = chain_logits(load_folder(source), IDS)
    _add(source, **{name: stored.clone()})
    torch.testing.assert_close(chain_logits(load_folder(source), IDS), expected, rtol=0, atol=0)
    _add(source, **{name: stored * 3})
    with pytest.raises(ExportError, match=rf"'(model\.)?{name}' and '(model\.)?{name}', which stand for the same"):
        load_folder(source)
