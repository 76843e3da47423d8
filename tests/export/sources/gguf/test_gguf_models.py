"""A model read from a GGUF file computes what the model computes that was written into it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge_export.sources.architectures import SUPPORTED
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.adapters.gguf_adapter import is_written_as
from reader_edge_runtime.errors import ExportError, GgufError, UnsupportedArchitectureError
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.source_models import load_model
from tests.export.sources.gguf.gguf_checks import check
from tests.tiny_models import MAX_CONTEXT, VOCAB_SIZE

_GRANITE_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48}


def test_all_but_those_whose_files_are_not_read_are_tried() -> None:
    assert set(SUPPORTED) - set(GGUF_MODELS) == {"cohere", "cohere2", "muse_glimmer_text"}


def test_an_adapter_may_be_for_what_files_call_each_family() -> None:
    names = {architecture for architecture, _ in GGUF_MODELS.values()}
    for model_type, (architecture, _) in GGUF_MODELS.items():
        assert [name for name in names if is_written_as(model_type, name)] == [architecture]


@pytest.mark.parametrize("model_type", GGUF_MODELS)
def test_every_architecture_has_the_same_logits_from_a_file(model_type: str, tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path / "source")
    check(write_model(model, tmp_path), model)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"tie_word_embeddings": False}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("gemma2", {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 0.7}),
        ("gemma3_text", {"final_logit_softcapping": 0.8}),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
        ("seed_oss", {"attention_out_bias": False, "tie_word_embeddings": True}),
        ("hunyuan_v1_dense", {"attention_bias": False}),
        ("ernie4_5", {"use_bias": False}),
        ("glm4", {"attention_bias": False, "tie_word_embeddings": True}),
        ("arcee", {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}),
        ("phi3", {"sliding_window": None, "tie_word_embeddings": False}),
        ("gpt_oss", {"attention_bias": False, "tie_word_embeddings": True}),
        ("lfm2_moe", {"num_dense_layers": 0, "conv_bias": False}),
        ("falcon_h1", {"mamba_rms_norm": False, "projectors_bias": False, "mamba_conv_bias": False}),
        ("nemotron_h-experts", {}),
        ("nemotron_h-experts", {"moe_latent_size": None, "use_bias": False, "norm_topk_prob": False}),
        ("ernie4_5_moe", {"use_bias": False, "moe_num_shared_experts": 0, "moe_layer_start_index": 0}),
        ("deepseek_v2", {"q_lora_rank": 48, "n_group": 1, "topk_group": 1, "topk_method": "greedy"}),
        ("deepseek_v3", {"norm_topk_prob": True, "q_lora_rank": None, "first_k_dense_replace": 0}),
        ("apertus", {"attention_bias": True}),
        ("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
        ("mixtral", {"head_dim": 32, "tie_word_embeddings": False}),
        ("phimoe", {"attention_bias": False, "lm_head_bias": False, "tie_word_embeddings": True}),
        ("gemma4_text-experts", {}),
        ("granitemoehybrid", _GRANITE_EXPERTS),
        ("granitemoehybrid", {**_GRANITE_EXPERTS, "layer_types": ["full_attention"] * 2}),
        ("granitemoehybrid", {**_GRANITE_EXPERTS, "position_embedding_type": "rope"}),
    ],
)
def test_what_models_differ_in_is_kept(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path / "source", **changes)
    check(write_model(model, tmp_path), model)


@pytest.mark.parametrize(
    ("model_type", "scaling", "values"),
    [
        ("llama", {"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ("gemma3_text", {"rope_type": "linear", "factor": 8.0}, {"type": "linear", "factor": 8.0}),
        (
            "qwen2",
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
        ),
        (
            "qwen3",
            {
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.5,
            },
            {
                "type": "yarn",
                "factor": 2.0,
                "original_context_length": 64,
                "yarn_beta_fast": 16.0,
                "yarn_beta_slow": 2.0,
                "yarn_attn_factor": 1.5,
            },
        ),
    ],
)
def test_scaled_rope_is_kept(model_type: str, scaling: dict[str, Any], values: dict[str, Any], tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path / "source", rope_scaling=scaling)
    prefix = f"{GGUF_MODELS[model_type][0]}.rope.scaling."
    own = {prefix + key: value for key, value in values.items()}
    check(write_model(model, tmp_path, values=own), model)


def test_older_files_have_one_matrix_for_keys_and_values_of_a_latent(tmp_path: Path) -> None:
    model = build_source("deepseek_v2", tmp_path / "source")
    sizes = {"attention.key_length": 24, "attention.value_length": 24, "attention.head_count_kv": 4}
    values: dict[str, Any] = {f"deepseek2.{key}": size for key, size in sizes.items()}
    values |= dict.fromkeys([f"deepseek2.attention.{kind}_length_mla" for kind in ("key", "value")])
    values |= {"deepseek2.expert_gating_func": None}
    names = {f"blk.{layer}.attn_kv_b.weight": f"model.layers.{layer}.self_attn.kv_b_proj.weight" for layer in range(2)}
    joined = {stored: model.get_parameter(name).detach().numpy() for stored, name in names.items()}
    apart = dict.fromkeys(f"blk.{layer}.attn_{kind}_b.weight" for layer in range(2) for kind in "kv")
    check(write_model(model, tmp_path, values=values, tensors=joined | apart), model)


def test_factors_of_a_minicpm_are_of_what_rotates(tmp_path: Path) -> None:
    factors = {
        f"{length}_factor": [1.0 + part * i / 8 for i in range(8)] for length, part in (("short", 1), ("long", 2))
    }
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors, "original_max_position_embeddings": MAX_CONTEXT}
    model = build_source("minicpm3", tmp_path / "source", rope_parameters=rope)
    tensors = {
        f"rope_factors_{length}.weight": np.array(factors[f"{length}_factor"], "f4") for length in ("short", "long")
    }
    check(write_model(model, tmp_path, tensors=tensors), model)


def test_a_ministral_file_without_growing_queries_is_mistral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_source("mistral", tmp_path / "source")
    monkeypatch.setitem(GGUF_MODELS, "mistral", ("mistral3", {}))
    path = write_model(model, tmp_path)
    assert find_source(path, None).architecture == "mistral"
    check(path, model)


@pytest.mark.parametrize(
    ("model_type", "architecture"), [("qwen2", "qwen2vl"), ("qwen3", "qwen3vl"), ("qwen3_moe", "qwen3vlmoe")]
)
def test_files_of_models_of_images_hold_the_texts_model(model_type: str, architecture: str, tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path / "source")
    values = {f"{architecture}.rope.dimension_sections": [6, 5, 5, 0], f"{architecture}.n_deepstack_layers": 3}
    path = write_model(model, tmp_path, values=values, architecture=architecture)
    assert find_source(path, None).architecture == model_type
    check(path, model)


def test_mtp_layers_of_glm_flash_are_left_out(tmp_path: Path) -> None:
    model = build_source("glm4_moe_lite", tmp_path / "source")
    values = {"deepseek2.block_count": 3, "deepseek2.nextn_predict_layers": 1}
    later = {"blk.2.nextn.eh_proj.weight": np.ones((64, 128), "f4"), "blk.2.attn_norm.weight": np.ones(64, "f4")}
    path = write_model(model, tmp_path, values=values, tensors=later)
    assert find_source(path, None).left_out == ("layers that guess later tokens",)
    check(path, model)


def test_windowed_layers_of_olmo_3_have_the_base_of_all(tmp_path: Path) -> None:
    model = build_source("olmo3", tmp_path / "source")
    same, other = ({"olmo2.rope.freq_base_swa": base} for base in (1e4, 2e4))
    check(write_model(model, tmp_path / "same.gguf", values=same), model)
    path = write_model(model, tmp_path / "other.gguf", values=other)
    with pytest.raises(UnsupportedArchitectureError, match=r"a base of their own \(20000\)"):
        find_source(path, None)


def test_mtp_layers_are_left_out_and_reported(tmp_path: Path) -> None:
    """llama.cpp's converter counts them among the layers, and tells for each layer whether it keeps states."""
    model = build_source("qwen3_5_text", tmp_path / "source")
    values: dict[str, Any] = {"qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1}
    values |= {"qwen35.attention.recurrent_layers": [True, False, False], "qwen35.full_attention_interval": 4}
    later = {"blk.2.nextn.eh_proj.weight": np.ones((64, 128), "f4"), "blk.2.attn_norm.weight": np.ones(64, "f4")}
    path = write_model(model, tmp_path, values=values, tensors=later)
    assert find_source(path, None).left_out == ("layers that guess later tokens",)
    check(path, model)
    refusals: dict[str, dict[str, Any]] = {
        "for 2 of 3 layers": {"qwen35.attention.recurrent_layers": [True, False]},
        "no layers but 3 that guess later tokens": {"qwen35.nextn_predict_layers": 3},
        "the tensor 'blk.2": {"qwen35.nextn_predict_layers": 0},
        r"nextn_predict_layers as \[-1\]": {"qwen35.nextn_predict_layers": [-1]},
    }
    for words, wrong in refusals.items():
        own = values | wrong
        path = write_model(model, tmp_path / "wrong.gguf", values=own, tensors=later)
        with pytest.raises(GgufError, match=words):
            load_model(find_source(path, None))


def test_layers_that_keep_states_may_be_given_by_their_period(tmp_path: Path) -> None:
    model = build_source("qwen3_5_text", tmp_path / "source")
    values = {"qwen35.attention.recurrent_layers": None, "qwen35.full_attention_interval": 2}
    check(write_model(model, tmp_path, values=values), model)


def test_files_of_granite_4_without_states_are_those_of_granite_3_that_tell_of_states(tmp_path: Path) -> None:
    """As llama.cpp's converter writes them, whose sizes of states nothing has."""
    model = build_source("granite", tmp_path / "source")
    states = {"conv_kernel": 4, "state_size": 16, "group_count": 1, "inner_size": 128, "time_step_rank": 8}
    own: dict[str, Any] = {f"granite.ssm.{key}": size for key, size in states.items()}
    own |= {"granite.attention.head_count_kv": [2, 2], "granite.rope.scaling.finetuned": True}
    own |= {"granite.expert_shared_feed_forward_length": 96, "granite.expert_count": 0}
    check(write_model(model, tmp_path, values=own), model)
    own["granite.expert_shared_feed_forward_length"] = 128
    with pytest.raises(GgufError, match="96 and 128"):
        find_source(write_model(model, tmp_path / "other.gguf", values=own), None)


@pytest.mark.parametrize("is_rotated", [False, True])
def test_granite_4_has_positions_where_its_file_says_so(is_rotated: bool, tmp_path: Path) -> None:
    kind = "rope" if is_rotated else "nope"
    model = build_source("granitemoehybrid", tmp_path / "source", position_embedding_type=kind, attention_bias=True)
    path = write_model(model, tmp_path)
    assert find_source(path, None).config["position_embedding_type"] == kind
    check(path, model)


def test_sizes_of_states_that_cannot_be_are_refused(tmp_path: Path) -> None:
    model = build_source("granitemoehybrid", tmp_path / "source")
    refusals = {"group_count": (2, "2 groups of heads"), "inner_size": (96, "96 values in heads of states beside 64")}
    for key, (size, words) in refusals.items():
        own = {f"granitehybrid.ssm.{key}": size}
        path = write_model(model, tmp_path / f"{key}.gguf", values=own)
        with pytest.raises(ExportError, match=words):
            find_source(path, None)


_NO_FACTORS = {f"rope_factors_{kind}.weight": np.zeros(0, np.float32) for kind in ("long", "short")}


@pytest.mark.parametrize(
    ("model_type", "values", "tensors"),
    [
        (
            "llama",
            {"llama.attention.head_dim": 16, "llama.vocab_size": VOCAB_SIZE, "tokenizer.ggml.eos_token_ids": [1]},
            {},
        ),
        ("gemma3_text", {"gemma3.rope.freq_base_swa": None, "gemma3.rope.local.freq_base": 5000.0}, {}),
        ("phi3", {"general.name": "phi3", "phi3.rope.scaling.original_context_length": 128}, _NO_FACTORS),
        ("granite", {"granite.attention.layer_norm_epsilon": 1e-6}, {}),
    ],
)
def test_files_of_ollama_are_the_same_models(
    model_type: str, values: dict[str, Any], tensors: dict[str, Any], tmp_path: Path
) -> None:
    model = build_source(model_type, tmp_path / "source")
    check(write_model(model, tmp_path, values=values, tensors=tensors), model)


@pytest.mark.parametrize(
    ("model_type", "changes", "values", "words"),
    [
        ("gpt_oss", {}, {"gpt-oss.expert_used_count": 9}, "sends each token to 9 of 8 experts"),
        ("gpt_oss", {}, {"gpt-oss.expert_count": 7}, r"ffn_gate_inp.weight of the shape \(8, .*\) instead of \(7,"),
        ("gpt_oss", {}, {"gpt-oss.expert_count": 0}, "sends each token to 3 of 0 experts"),
        ("gpt_oss", {}, {"gpt-oss.expert_count": 1 << 28}, "has 268435456 experts: at most 8192 are exported"),
        ("gpt_oss", {}, {"gpt-oss.expert_feed_forward_length": 64}, "two sizes of its experts"),
        ("gpt_oss", {}, {"gpt-oss.expert_weights_scale": 2.0}, "'gpt-oss.expert_weights_scale' to 2.0"),
        ("lfm2_moe", {}, {"lfm2moe.expert_gating_func": 1}, "chooses experts by the function 1"),
        ("qwen3_5_moe_text", {}, {"qwen35moe.expert_group_count": 2}, "'qwen35moe.expert_group_count' to 2"),
        (
            "granitemoehybrid",
            _GRANITE_EXPERTS | {"layer_types": ["full_attention"] * 2},
            {"granitemoe.expert_shared_feed_forward_length": None},
            "no MLP that every token goes through",
        ),
    ],
)
def test_mixtures_that_are_others_are_refused(
    model_type: str, changes: dict[str, Any], values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = build_source(model_type, tmp_path / "source", **changes)
    path = write_model(model, tmp_path, values=values)
    with pytest.raises(ExportError, match=words):
        load_model(find_source(path, None))
