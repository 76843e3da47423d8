"""Every key of config.json is accounted for: translated into one form, known, inert, or refused by its name."""

import inspect
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from reader_edge_export.sources.architectures import SUPPORTED, check_architecture, is_mixture
from reader_edge_export.sources.blank_model import built_config
from reader_edge_export.sources.config.config_keys import READ, check_keys
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.image_part import FAMILIES
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from tests.export.record_transformers5 import DEFAULTS
from tests.tiny_models import TINY_CONFIGS, tiny_config

_BESIDE_ALPHA = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
HALF_ROTATED = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_what_the_class_of_transformers_takes_is_known(model_type: str) -> None:
    built = CONFIG_MAPPING[model_type]()
    check_keys({**built.to_dict(), "model_type": model_type})
    parameters = inspect.signature(type(built).__init__).parameters
    check_keys(
        {"model_type": model_type} | {name: built.to_dict()[name] for name in parameters if name in built.to_dict()}
    )


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_an_unknown_key_is_refused_by_its_name(model_type: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=r"sets 'embedding_whitening' to 0\.5.*remove the key if"):
        hf_config(tiny_config(model_type, embedding_whitening=0.5))
    hf_config(tiny_config(model_type, embedding_whitening=None))


def test_all_unknown_keys_are_named_at_once() -> None:
    unknown = {"whitening": 0.5, "use_cache": True, "mixing": [1], "tuned": None, "qk_norm": True}
    named = (
        r"sets 'whitening' to 0\.5, 'mixing' to \[1\], 'qk_norm' to True \(which changes nothing at False\), which a"
    )
    with pytest.raises(UnsupportedArchitectureError, match=f"{named} llama .* remove those keys that have no effect"):
        hf_config(tiny_config("llama", **unknown))
    with pytest.raises(UnsupportedArchitectureError, match="'key39' to 39 and 60 more, which a"):
        hf_config(tiny_config("llama", **{f"key{number}": number for number in range(100)}))


# What tools of training and loading leave in public folders, of the families that carry it.
LEFTOVERS = {
    "_flash_attn_2_enabled": True,
    "use_flash_attention_2": False,
    "attn_implementation": "flash_attention_2",
    "_attn_implementation_internal": "sdpa",
    "tokenizer_model_max_length": 2048,
    "tokenizer_padding_side": "right",
    "padding_side": "left",
    "eos_token_ids": [1, 2],
    "ignore_index": -100,
    "neftune_noise_alpha": 5.0,
    "gradient_checkpointing": False,
    "description": "A model.",
    "version": "1.0",
    "unsloth_version": "2025.1",
    "unsloth_fixed": True,
    "_unsloth_fixed": True,
    "unsloth_further_note": 1,
    "auto_map": {"AutoConfig": "configuration_x.X"},
    "quantization_config": None,
    "use_cache": False,
    "pretraining_tp": 4,
    "is_llama_config": True,
    "transformers.js_config": {"dtype": "q4"},
    "model_max_length": 2048,
    "num_assistant_tokens": 20,
    "output_router_logits": True,
}


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_what_training_and_loading_leave_behind_changes_nothing(model_type: str) -> None:
    assert hf_config(tiny_config(model_type, **LEFTOVERS)) == hf_config(tiny_config(model_type))


@pytest.mark.parametrize(
    ("key", "neutral", "other"),
    [
        ("attention_multiplier", 1.0, 0.125),
        ("lm_head_multiplier", 1, 0.5),
        ("qk_layernorm", False, True),
        ("mlp_bias", False, True),
        ("rope_interleaved", False, True),
        ("use_qkv_bias", False, True),
        ("num_experts_per_tok", 0, 2),
        ("mtp_num_hidden_layers", 0, 1),
        ("num_kv_shared_layers", 0, 4),
        ("apply_residual_connection_post_layernorm", False, True),
    ],
)
def test_a_neutral_value_alone_is_passed_over(key: str, neutral: object, other: object) -> None:
    assert hf_config(tiny_config("qwen2", **{key: neutral})) == hf_config(tiny_config("qwen2"))
    words = rf"sets '{key}' to {other!r} \(which changes nothing at (1|0|False)\), which a qwen2 model"
    with pytest.raises(UnsupportedArchitectureError, match=words):
        hf_config(tiny_config("qwen2", **{key: other}))


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"attn_logit_softcapping": 50.0}),
        ("llama", {"logit_scale": 0.0625}),
        ("llama", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"rope_parameters": HALF_ROTATED}),
        ("llama", {"use_qk_norm": True}),
        ("llama", {"num_experts": 8}),
        ("llama", {"pruned_heads": {"0": [1]}}),
        ("llama", {"per_layer_config": [{"sliding_window": 4}]}),
        ("mistral", {"attention_bias": True}),
        ("mistral", {"rope_parameters": TINY_CONFIGS["ministral3"]["rope_parameters"]}),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("mistral", {"use_sliding_window": False}),
        ("qwen2", {"layer_types": ["sliding_attention", "chunked_attention"]}),
        ("qwen2", {"mlp_bias": True}),
        ("lfm2", {"layer_types": ["conv", "sliding_attention"]}),
        ("lfm2", {"num_heads": 8}),
        ("granitemoehybrid", {"layer_types": ["moe", "attention"]}),
        ("gemma4_text", {"per_layer_config": {"0": {"head_dim": 32}}}),
        ("gemma4_text", {"per_layer_config": {"1": {"head_dim": 32}, "2": {"head_dim": 64}}}),
        ("gemma4_text", {"per_layer_config": {"1": {"sliding_window": 4}}}),
        (
            "gemma4_text",
            {"rope_parameters": {"full_attention": HALF_ROTATED, "sliding_attention": {"rope_theta": 1e4}}},
        ),
        ("llama", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}),
        ("granitemoehybrid", {"normalization_function": "layernorm"}),
        ("qwen3_5_text", {"attn_output_gate": False}),
        ("qwen3_5_text", {"mamba_ssm_dtype": "bfloat16"}),
        ("qwen3_5_text", {"mlp_only_layers": [0]}),
        ("qwen3_5_text", {"layer_types": ["linear_attention", "sliding_attention"]}),
        ("lfm2", {"use_pos_enc": False}),
        ("gemma", {"final_logit_softcapping": 30.0}),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}),
        ("phi", {"attention_bias": True}),
        ("granite", {"position_embedding_type": "nope"}),
        ("llama", {"rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4]}}),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}}),
        ("llama", {"rope_parameters": {"rope_type": "proportional"}}),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "rope_theta": 1e4}}),
        (
            "qwen2",
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
        ),
    ],
)
def test_what_the_architecture_would_not_read_is_refused(model_type: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitectureError):
        hf_config(tiny_config(model_type, **changes))


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"attention_bias": False, "use_sliding_window": False, "sliding_window": 4096, "num_experts": 0}),
        ("llama", {"layer_types": ["full_attention", "full_attention"], "partial_rotary_factor": 1.0}),
        ("llama", {"head_dim": None, "rope_scaling": None, "num_key_value_heads": None}),
        ("arcee", {"head_dim": None}),
        ("llama", {"rope_scaling": {}, "temperature": 0.6, "pruned_heads": {}, "dtype": "bfloat16"}),
        ("mistral", {"use_sliding_window": False, "sliding_window": None}),
        ("mistral", {"auto_map": {"AutoModel": "modeling_x.X"}}),
        (
            "qwen2",
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "finetuned": True,
                }
            },
        ),
    ],
)
def test_what_changes_nothing_is_passed_over(model_type: str, changes: dict[str, Any]) -> None:
    hf_config(tiny_config(model_type, **changes))


@pytest.mark.parametrize(
    ("model_type", "published"),
    [  # keys beside the usual ones, as makers of models have them
        ("llama", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}),
        (
            "llama",
            {"max_sequence_length": 2048, "pretraining_tp": 1, "_name_or_path": "x", "unsloth_version": "2025.1"},
        ),
        ("llama", {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 21, "pad_token": "</s>"}),
        ("qwen2", {"use_mrope": False, "use_sliding_window": False, "layer_types": None, "max_window_layers": 28}),
        ("smollm3", {"use_sliding_window": False, "layer_types": None, "max_window_layers": 28, "pretraining_tp": 2}),
        ("phi3", {"interpolate_factor": 1, "lm_head_bias": False, "full_attn_mod": 1, "attention_bias": False}),
        (
            "gpt2",
            {"n_ctx": 128, "_num_labels": 1, "output_past": True, "task_specific_params": {"text-generation": {}}},
        ),
        ("gemma2", {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}),
        (
            "cohere2",
            {
                **{"layer_switch": 4, "sliding_window_pattern": 4, "order_of_interleaved_layers": "local_attn_first"},
                **{"position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "use_embedding_sharing": False},
                **{"use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": False},
                **{"use_qk_norm": False, "cache_implementation": "hybrid", "head_dim": 16},
            },
        ),
        (
            "hunyuan_v1_dense",  # Hy-MT2-7B
            {"attention_head_dim": 32, "org_vocab_size": 320, "use_qk_norm": True, "use_cla": False}
            | {"cla_share_factor": 2, "norm_type": "rms", "mlp_bias": False, "rope_theta": 1e4}
            | {"rope_scaling": {"alpha": 1000.0, "type": "dynamic", "factor": 1.0, **_BESIDE_ALPHA}},
        ),
        ("apertus", {"mlp_bias": False, "qk_norm": True, "post_norm": False, "hidden_dropout": 0.0}),
        (
            "ernie4_5_moe",
            {"moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_use_aux_free": True, "num_nextn_predict_layers": 1},
        ),
        (
            "starcoder2",
            {"activation_function": "gelu", "layer_norm_epsilon": 1e-5, "norm_epsilon": 1e-5, "mlp_type": "default"}
            | {"norm_type": "layer_norm", "scale_attn_weights": True, "attention_softmax_in_fp32": True}
            | {"scale_attention_softmax_in_fp32": True, "residual_dropout": 0.1, "embedding_dropout": 0.1},
        ),
        ("mixtral", {"head_dim": None, "router_jitter_noise": 0.0, "router_aux_loss_coef": 0.02}),
        (
            "phimoe",  # Phi-3.5-MoE
            {"input_jitter_noise": 0.01, "sliding_window": 131072, "num_experts_per_tok": 2, "hidden_dropout": 0.0},
        ),
        ("internlm3", {"bias": False, "qkv_bias": False, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}}),
        ("cohere", {"use_qk_norm": False, "logit_scale": 0.0625, "model_max_length": 8192}),
        ("gemma3_text", {"_sliding_window_pattern": 6, "use_bidirectional_attention": False}),
        (
            "granitemoehybrid",
            {"layer_types": ["mamba", "attention"], "position_embedding_type": "nope", "init_method": "mup"}
            | {"normalization_function": "rmsnorm", "router_aux_loss_coef": 0.01, "output_router_logits": False}
            | {"mamba_d_head": "auto", "intermediate_size": 512, "time_step_limit": [0.0, {"__float__": "Infinity"}]},
        ),
        (
            "qwen3_5_text",
            {
                "attn_output_gate": True,
                "full_attention_interval": 2,
                "mamba_ssm_dtype": "float32",
                "mlp_only_layers": [],
            }
            | {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False},
        ),
        (
            "lfm2",
            {"block_dim": 64, "conv_dim": 64, "conv_dim_out": 64, "num_heads": 4, "block_use_swiglu": True}
            | {"block_mlp_init_scale": 1.0, "block_out_init_scale": 1.0, "conv_use_xavier_init": True}
            | {"use_pos_enc": True, "tie_embedding": True, "block_ff_dim": 96, "rope_theta": 1e6, "theta": 1e6},
        ),
    ],
)
def test_keys_that_makers_publish_are_known(model_type: str, published: dict[str, Any]) -> None:
    hf_config(tiny_config(model_type, **published))


def test_every_tower_says_what_it_reads() -> None:
    assert {family.vision_type for family in FAMILIES.values()} == READ.keys() - set(SUPPORTED)


def test_a_base_inside_the_scaling_is_read() -> None:
    form = hf_config(tiny_config("llama", rope_scaling={"rope_type": "default", "rope_theta": 1e6}))
    assert form["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_a_pattern_of_windows_becomes_the_type_of_each_layer(key: str) -> None:
    form = hf_config(tiny_config("gemma3_text", layer_types=None, num_hidden_layers=4, **{key: 2}))
    assert form["layer_types"] == ["sliding_attention", "full_attention"] * 2


def test_an_alpha_of_hunyuan_stretches_the_base_for_texts_of_any_length() -> None:
    rope = {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0, **_BESIDE_ALPHA}, "rope_theta": 1e4}
    form = hf_config(tiny_config("hunyuan_v1_dense", **rope))
    assert form["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4 * 1000 ** (32 / 30)}
    for wrong in ({"rope_scaling": rope["rope_scaling"]}, rope | {"head_dim": 2}):
        with pytest.raises(ExportError, match="gives alpha in rope_scaling, but no rope_theta or head_dim"):
            hf_config(tiny_config("hunyuan_v1_dense", **wrong))


def test_gemmas_newer_activation_overrules_the_older() -> None:
    assert hf_config(tiny_config("gemma", hidden_act="gelu", hidden_activation="gelu_pytorch_tanh"))["hidden_act"] == (
        "gelu_pytorch_tanh"
    )
    assert hf_config(tiny_config("gemma", hidden_act="relu", hidden_activation=None))["hidden_act"] == "relu"


def test_the_older_activation_of_gemma_is_the_approximate_one_that_its_makers_meant() -> None:
    assert hf_config(tiny_config("gemma", hidden_act="gelu"))["hidden_act"] == "gelu_pytorch_tanh"


def test_layers_of_lfm2_are_given_by_type_or_by_the_indices_that_attend() -> None:
    older = tiny_config("lfm2", layer_types=None, full_attn_idxs=[1])
    assert hf_config(older)["layer_types"] == ["conv", "full_attention"]
    assert hf_config(older) == hf_config(tiny_config("lfm2"))


def test_layers_of_granite_have_two_names_under_two_keys() -> None:
    older = tiny_config("granitemoehybrid", layer_types=None, layers_block_type=["mamba", "attention"])
    assert hf_config(older) == hf_config(tiny_config("granitemoehybrid"))


@pytest.mark.parametrize("key", ["1", "01"])
def test_gemma4_says_the_sizes_of_its_layers_in_two_ways(key: str) -> None:
    sizes = {"head_dim": 32, "num_key_value_heads": 1}
    newer = {name: value for name, value in tiny_config("gemma4_text").items() if "global" not in name}
    newer["per_layer_config"] = {key: sizes, "2": sizes, "4": sizes}
    assert hf_config(newer) == hf_config(tiny_config("gemma4_text"))


def test_a_gemma4_whose_images_alone_attend_both_ways_is_taken() -> None:
    check_architecture(tiny_config("gemma4_text", use_bidirectional_attention="vision"))
    for model_type, given in (("gemma4_text", "all"), ("gemma3_text", "vision")):
        with pytest.raises(UnsupportedArchitectureError, match="use_bidirectional_attention"):
            check_architecture(tiny_config(model_type, use_bidirectional_attention=given))


def test_sizes_of_experts_count_where_a_gemma4_has_any() -> None:
    sizes = {"num_experts": 8, "top_k_experts": 9, "moe_intermediate_size": None}
    assert hf_config(tiny_config("gemma4_text", enable_moe_block=False, **sizes)) == hf_config(
        tiny_config("gemma4_text", enable_moe_block=False)
    )


def test_a_vocabulary_of_inputs_that_no_layer_has_is_passed_over() -> None:
    form = hf_config(tiny_config("gemma4_text", hidden_size_per_layer_input=0, vocab_size_per_layer_input=64))
    assert form == hf_config(tiny_config("gemma4_text", hidden_size_per_layer_input=0))


def test_layers_of_qwen3_5_are_given_by_type_or_by_their_interval() -> None:
    older = tiny_config("qwen3_5_text", layer_types=None, full_attention_interval=2)
    assert hf_config(older) == hf_config(tiny_config("qwen3_5_text"))


@pytest.mark.parametrize("pattern", ["LG", 2])
def test_exaones_pattern_is_letters_or_a_number(pattern: str | int) -> None:
    given = tiny_config("exaone4", sliding_window_pattern=pattern, layer_types=None)
    assert hf_config(given)["layer_types"] == ["sliding_attention", "full_attention"]
    assert hf_config(given | {"sliding_window": None})["layer_types"] == ["full_attention"] * 2


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_transformers_5_supposes_the_same_for_keys_that_are_absent(model_type: str) -> None:
    needed: dict[str, dict[str, Any]] = {  # what may not be absent
        "lfm2_moe": {"layer_types": ["conv"] * 32},
        "deepseek_v2": {"num_experts_per_tok": 6},
    }
    given = needed.get(model_type, {})
    theirs = built_config(hf_config(DEFAULTS[model_type] | given), model_type)
    ours = built_config({"model_type": model_type} | given, model_type)
    theirs.allow_global_per_layer_attribute_access = ours.allow_global_per_layer_attribute_access = True
    for key in sorted(READ[model_type] | {"tie_word_embeddings"}):
        value = getattr(theirs, key, None)
        if model_type == "ministral3" and key in ("rope_parameters", "rope_scaling"):
            continue  # which cannot be absent
        if key in ("full_attn_idxs", "per_layer_config"):
            continue  # which its class derives, as it does layer_types
        if key == "head_dim" and value == theirs.hidden_size // theirs.num_attention_heads:
            continue  # what an absent one comes to
        assert value == getattr(ours, key, None), key


def test_kinds_of_a_nemotron_s_layers_are_letters_or_names() -> None:
    newer = tiny_config("nemotron_h-experts")
    for key, kinds in (("layers_block_type", ["mamba", "attention", "moe"]), ("hybrid_override_pattern", "M*E")):
        older = {**newer, "layers_block_type": None} | {key: kinds}
        assert hf_config(older) == hf_config(newer)
        assert is_mixture(older)
    assert not is_mixture(newer | {"layers_block_type": None, "hybrid_override_pattern": "M*-"})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hybrid_override_pattern": "M*M"}, "the same in both"),
        ({"layers_block_type": None}, "names 0 layers"),
        ({"hybrid_override_pattern": "MX"}, "letters M, "),
        ({"layers_block_type": ["mamba"] * 2000, "num_hidden_layers": 2000}, "from 1 to 1024"),
        ({"time_step_limit": [0.0, 0.1]}, "whose upper end"),
        ({"n_shared_experts": 2}, "'n_shared_experts' to 2"),
        ({"tie_word_embeddings": True}, "'tie_word_embeddings' to True"),
    ],
)
def test_what_a_nemotron_cannot_be_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        hf_config(tiny_config("nemotron_h-experts") | wrong)
