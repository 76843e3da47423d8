"""Tensors of a GGUF file that are rounded, put together or cut otherwise than a module's are read as its own."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from reader_edge_export.sources.find import find_source
from reader_edge_runtime.errors import ExportError, GgufError
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.sources.gguf.same_logits import check
from tests.gguf_files import write_gguf


@pytest.mark.parametrize("model_type", ["llama", "arcee"])
def test_factors_of_frequencies_are_kept(model_type: str, tmp_path: Path) -> None:
    """As llama.cpp stores the scaling of Llama 3.1."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    stretched = {"head_dim": 16, "rope_scaling": {"rope_type": "llama3", **scaling}, "rope_theta": 500.0}
    model = build_source(model_type, tmp_path / "source", **stretched)
    plain = 500.0 ** (-torch.arange(0, 16, 2) / 16)
    factors = (plain / model.get_buffer("model.rotary_emb.inv_freq")).numpy()
    assert factors.min() == 1
    assert factors.max() > 7
    tensors = {"rope_freqs.weight": factors}
    check(write_model(model, tmp_path / "source", tmp_path / "model.gguf", tensors=tensors), model)


def test_longrope_is_kept_up_to_where_it_switches(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0 + i / 8 for i in range(4)], "long_factor": [2.0 + i for i in range(4)]}
    changes = {"rope_scaling": {"type": "longrope", **factors}, "original_max_position_embeddings": 64}
    model = build_source("phi3", tmp_path / "source", **changes)
    scale = model.model.rotary_emb.attention_scaling
    assert scale > 1
    path = write_model(
        model,
        tmp_path / "source",
        tmp_path / "model.gguf",
        values={"phi3.rope.scaling.attn_factor": scale},
        tensors={
            f"rope_factors_{name}.weight": np.array(factors[f"{name}_factor"], "f4") for name in ("long", "short")
        },
    )
    check(path, model, max_context=64)
    with pytest.raises(ExportError, match="--max-context 64"):
        find_source(path, None)


def test_fused_queries_keys_and_values_are_taken_apart(tmp_path: Path) -> None:
    model = build_source("qwen2", tmp_path / "source")
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf")
    file = find_source(path, None).file  # type: ignore[attr-defined]
    weights = {name: file.values(name) for name in file.tensors}
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [weights.pop(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
            weights[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)
    check(write_gguf(tmp_path / "fused.gguf", "qwen2", file.metadata, weights), model)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_rounded_weights_have_the_values_that_the_library_gives_them(kind: str, tmp_path: Path) -> None:
    """Gemma 2 has all of it: norms, tied embeddings, windows, soft caps; llama.cpp keeps vectors in fp32."""
    stored = gguf.GGMLQuantizationType[kind]
    model = build_source("gemma2", tmp_path / "source")
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf", stored)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), stored), stored)
                parameter.copy_(torch.from_numpy(rounded))
    source = find_source(path, None)
    assert source.weight_types == (kind, "F32")
    check(path, model)


def test_gate_and_up_of_experts_may_be_one_tensor(tmp_path: Path) -> None:
    """As llama.cpp's converter writes them where it is told to."""
    model = build_source("qwen3_5_moe_text", tmp_path / "source")
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf")
    file = find_source(path, None).file  # type: ignore[attr-defined]
    weights = {name: file.values(name) for name in file.tensors}
    for layer in range(2):
        parts = [weights.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        weights[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    check(write_gguf(tmp_path / "fused.gguf", "qwen35moe", file.metadata, weights), model)


@pytest.mark.parametrize(
    ("model_type", "ending"),
    [("qwen3_5_moe_text", "ffn_gate_inp_shexp.weight"), ("granitemoehybrid", "ssm_norm.weight")],
)
def test_axes_of_one_may_be_left_out(model_type: str, ending: str, tmp_path: Path) -> None:
    """As llama.cpp leaves them out when it rewrites a file."""
    model = build_source(model_type, tmp_path / "source")
    file = find_source(write_model(model, tmp_path / "source", tmp_path / "model.gguf"), None).file  # type: ignore[attr-defined]
    weights = {name: file.values(name) for name in file.tensors}
    short = {name: weight[0] for name, weight in weights.items() if name.endswith(ending)}
    assert {weight.ndim for weight in short.values()} == {1}
    check(write_gguf(tmp_path / "short.gguf", GGUF_MODELS[model_type][0], file.metadata, weights | short), model)


def test_scales_that_no_number_has_are_refused(tmp_path: Path) -> None:
    """In whatever form their weights are asked for."""
    model = build_source("gpt_oss", tmp_path / "source")
    path = write_model(model, tmp_path / "source", tmp_path / "model.gguf", gguf.GGMLQuantizationType.MXFP4)
    place = find_source(path, None).file.tensors["blk.1.ffn_down_exps.weight"].offset  # type: ignore[attr-defined]
    spoilt = bytearray(path.read_bytes())
    spoilt[place : place + 2] = b"\xff\x77"
    path.write_bytes(spoilt)
    weights = find_source(path, None).open_model().weights
    for read in (weights.read_expert, weights.expert_blocks):
        with pytest.raises(GgufError, match=r"'blk.1.ffn_down_exps.weight' that are not finite"):
            read("model.layers.1.mlp.experts.down_proj", 0)
