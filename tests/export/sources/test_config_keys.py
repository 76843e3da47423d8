"""Every key of config.json is accounted for: translated, known, inert, or refused by its name."""

import contextlib
import inspect
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from reader_edge_export.architectures import SUPPORTED, check_architecture, max_context_of
from reader_edge_export.sources.blank_model import built_config
from reader_edge_export.sources.config_form import class_form
from reader_edge_export.sources.config_keys import READ, check_keys
from reader_edge_runtime.errors import ExportError, ReaderEdgeError, UnsupportedArchitectureError
from tests.export.record_transformers5 import DEFAULTS
from tests.tiny_models import TINY_CONFIGS, tiny_config

GROWING = TINY_CONFIGS["ministral3"]["rope_parameters"]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _ropes(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model."""
    return tiny_config(model_type) | changes


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
        class_form(config(model_type, embedding_whitening=0.5))
    class_form(config(model_type, embedding_whitening=None))


def test_all_unknown_keys_are_told_at_once() -> None:
    unknown = {"whitening": 0.5, "use_cache": True, "mixing": [1], "tuned": None, "qk_norm": True}
    told = r"sets 'whitening' to 0\.5, 'mixing' to \[1\], 'qk_norm' to True \(which changes nothing at False\), which a"
    with pytest.raises(UnsupportedArchitectureError, match=f"{told} llama .* remove those keys that have no effect"):
        class_form(config("llama", **unknown))
    with pytest.raises(UnsupportedArchitectureError, match="'key39' to 39 and 60 more, which a"):
        class_form(config("llama", **{f"key{number}": number for number in range(100)}))


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
    assert class_form(config(model_type, **LEFTOVERS)) == class_form(config(model_type))


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
    assert class_form(config("qwen2", **{key: neutral})) == class_form(config("qwen2"))
    told = rf"sets '{key}' to {other!r} \(which changes nothing at (1|0|False)\), which a qwen2 model"
    with pytest.raises(UnsupportedArchitectureError, match=told):
        class_form(config("qwen2", **{key: other}))


@pytest.mark.parametrize("names", ["LlamaForCausalLM", 5, {"0": "LlamaForCausalLM"}, [5]])
def test_architectures_that_are_no_list_of_texts_are_refused(names: object) -> None:
    with pytest.raises(ExportError, match=r"gives architectures as .* a list of texts: correct it\.$"):
        check_architecture(config("llama", architectures=names))


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"attn_logit_softcapping": 50.0}),
        ("llama", {"logit_scale": 0.0625}),
        ("llama", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        ("llama", {"use_qk_norm": True}),
        ("llama", {"num_experts": 8}),
        ("llama", {"pruned_heads": {"0": [1]}}),
        ("llama", {"per_layer_config": [{"sliding_window": 4}]}),
        ("mistral", {"attention_bias": True}),
        ("mistral", {"rope_parameters": GROWING}),
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
        ("gemma4_text", _ropes({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, {"rope_theta": 1e4})),
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
        class_form(config(model_type, **changes))


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("llama", {"rope_theta": "500000.0"}, "rope_theta as '500000.0', which must be a number above 0"),
        ("llama", {"rope_theta": None}, "rope_theta as null"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps as nan"),
        ("llama", {"hidden_size": True}, "hidden_size as True"),
        ("llama", {"hidden_act": "mish"}, "hidden_act as 'mish', which must be one of silu"),
        ("llama", {"tie_word_embeddings": "true"}, "tie_word_embeddings as 'true'"),
        ("qwen3", {"head_dim": None}, "head_dim as null"),
        ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta twice"),
        ("llama", {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rope_type twice"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "no factor in rope_scaling of the type 'linear'"),
        ("llama", {"rope_scaling": {**LLAMA3, "factor": "8"}}, "factor in rope_scaling as '8'"),
        ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "no low_freq_factor"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1.0}},
            "differ",
        ),
        ("ministral3", {"rope_parameters": None}, "no llama_4_scaling_beta in rope_parameters"),
        ("ministral3", {"rope_parameters": {**GROWING, "llama_4_scaling_beta": -1}}, "must be a number, 0 or more"),
        (
            "ministral3",
            {"rope_parameters": {**GROWING, "max_position_embeddings": 64}},
            "max_position_embeddings twice",
        ),
        ("qwen2", {"layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        ("qwen2", {"use_sliding_window": False}, "says that there is no window"),
        ("gemma2", {"sliding_window": None}, "says that there is no window"),
        ("gemma2", {"hidden_act": "silu"}, "give hidden_activation"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e6}}, "give both"),
        ("cohere2", {"sliding_window_pattern": 4, "layer_switch": 3}, "gives 4 and 3 as the layers from one"),
        ("exaone4", {"sliding_window_pattern": "LXG"}, "0 or more, or letters L and G"),
        ("exaone4", {"sliding_window_pattern": 0, "layer_types": None}, "sliding_window_pattern as 0 beside a window"),
        ("gpt2", {"hidden_size": 32}, "n_embd twice"),
        ("qwen3_5_text", {"full_attention_interval": 3}, "full_attention_interval as 3, and other layer_types"),
        ("granitemoehybrid", {"time_step_limit": [0.1]}, "two numbers, the smaller one first"),
        ("granitemoehybrid", {"time_step_limit": [0.2, 0.1]}, "two numbers, the smaller one first"),
        ("granitemoehybrid", {"mamba_d_head": "wide"}, "a whole number above 0, or .auto."),
        ("granitemoehybrid", {"mamba_chunk_size": 10**9}, "a whole number from 1 to 1024"),
        ("granitemoehybrid", {"position_embedding_type": "learned"}, '"rope" or "nope"'),
        ("granitemoehybrid", {"layers_block_type": ["attention", "mamba"]}, "layers_block_type and other layer_types"),
        ("lfm2", {"conv_L_cache": 1}, "a whole number above 1"),
        ("gemma4_text", {"layer_types": ["full_attention"] + ["sliding_attention"] * 4}, "the last of its layer_types"),
        ("gemma4_text", {"vocab_size_per_layer_input": 64}, "vocab_size_per_layer_input as 64, and vocab_size as 320"),
        ("gemma4_text", {"per_layer_config": {str(n): {"head_dim": 64} for n in (1, 2, 4)}}, "global_head_dim as 32"),
        ("gemma4_text", {"per_layer_config": {"9" * 5000: {}}}, "per_layer_config as .* can be exported"),
        ("gemma4_text", _ropes({"rope_theta": 1e4}, {}), "no rope_theta of sliding"),
        ("gemma4_text", {"enable_moe_block": True, "num_experts": 8}, "not top_k_experts and moe_intermediate_size"),
        ("gemma4_text-experts", {"top_k_experts": 9}, "sends each token to 9 of 8 experts"),
        ("gemma4_text-experts", {"num_experts": 0}, "enable_moe_block, but not num_experts"),
        ("lfm2", {"block_ff_dim": 90}, "block_ff_dim as 90 and intermediate_size as 96"),
        ("lfm2", {"tie_embedding": False}, "tie_embedding as False and tie_word_embeddings as True"),
        ("lfm2", {"full_attn_idxs": [0]}, "full_attn_idxs as .0., which are not the layers"),
        ("lfm2", {"full_attn_idxs": [2], "layer_types": None}, "full_attn_idxs as .2., which are not the layers"),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "factor": 32.0}},
            "give attention_factor",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_key(model_type: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        class_form(config(model_type, **changes))


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
    class_form(config(model_type, **changes))


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
    class_form(config(model_type, **published))


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_values_of_any_kind_are_read_or_refused_in_one_sentence(model_type: str) -> None:
    values = [
        None,
        True,
        0,
        -1,
        1.5,
        float("nan"),
        10**40,
        "",
        "x",
        [],
        [1],
        ["x"],
        {},
        {"x": 1},
        {"full_attention": 1},
    ]
    ropes: list[Any] = [{"rope_type": value, "type": other} for value in values for other in values]
    ropes += [{"rope_type": "yarn", "factor": 2.0, "beta_fast": value} for value in values]
    ropes += [{"rope_type": "longrope", "short_factor": value, "long_factor": [1.0] * 8} for value in values]
    ropes += [{"full_attention": value, "sliding_attention": other} for value in values for other in values]
    changes: list[tuple[str, Any]] = [(key, value) for key in sorted(READ[model_type]) for value in values]
    changes += [(key, rope) for key in ("rope_parameters", "rope_scaling") for rope in ropes]
    for key, value in changes:
        read = config(model_type, **{key: value})
        with contextlib.suppress(ReaderEdgeError):
            check_architecture(read)
            class_form(read)
            max_context_of(read, None)


def test_a_base_inside_the_scaling_is_read() -> None:
    form = class_form(config("llama", rope_scaling={"rope_type": "default", "rope_theta": 1e6}))
    assert form["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_a_pattern_of_windows_becomes_the_type_of_each_layer(key: str) -> None:
    form = class_form(config("gemma3_text", layer_types=None, num_hidden_layers=4, **{key: 2}))
    assert form["layer_types"] == ["sliding_attention", "full_attention"] * 2


def test_gemmas_newer_activation_overrules_the_older() -> None:
    assert class_form(config("gemma", hidden_act="gelu", hidden_activation="gelu_pytorch_tanh"))["hidden_act"] == (
        "gelu_pytorch_tanh"
    )
    assert class_form(config("gemma", hidden_act="relu", hidden_activation=None))["hidden_act"] == "relu"


def test_the_older_activation_of_gemma_is_the_approximate_one_that_its_makers_meant() -> None:
    assert class_form(config("gemma", hidden_act="gelu"))["hidden_act"] == "gelu_pytorch_tanh"


def test_layers_of_lfm2_are_told_by_type_or_by_the_indices_of_those_that_attend() -> None:
    older = config("lfm2", layer_types=None, full_attn_idxs=[1])
    assert class_form(older)["layer_types"] == ["conv", "full_attention"]
    assert class_form(older) == class_form(config("lfm2"))


def test_layers_of_granite_have_two_names_under_two_keys() -> None:
    older = config("granitemoehybrid", layer_types=None, layers_block_type=["mamba", "attention"])
    assert class_form(older) == class_form(config("granitemoehybrid"))


@pytest.mark.parametrize("key", ["1", "01"])
def test_gemma4_says_the_sizes_of_its_layers_in_two_ways(key: str) -> None:
    sizes = {"head_dim": 32, "num_key_value_heads": 1}
    newer = {name: value for name, value in config("gemma4_text").items() if "global" not in name}
    newer["per_layer_config"] = {key: sizes, "2": sizes, "4": sizes}
    assert class_form(newer) == class_form(config("gemma4_text"))


def test_a_gemma4_whose_images_alone_attend_both_ways_is_taken() -> None:
    check_architecture(config("gemma4_text", use_bidirectional_attention="vision"))
    for model_type, given in (("gemma4_text", "all"), ("gemma3_text", "vision")):
        with pytest.raises(UnsupportedArchitectureError, match="use_bidirectional_attention"):
            check_architecture(config(model_type, use_bidirectional_attention=given))


def test_sizes_of_experts_count_where_a_gemma4_has_any() -> None:
    sizes = {"num_experts": 8, "top_k_experts": 9, "moe_intermediate_size": None}
    assert class_form(config("gemma4_text", enable_moe_block=False, **sizes)) == class_form(
        config("gemma4_text", enable_moe_block=False)
    )


def test_layers_of_qwen3_5_are_told_by_type_or_by_their_interval() -> None:
    older = config("qwen3_5_text", layer_types=None, full_attention_interval=2)
    assert class_form(older) == class_form(config("qwen3_5_text"))


@pytest.mark.parametrize("pattern", ["LG", 2])
def test_exaones_pattern_is_letters_or_a_number(pattern: str | int) -> None:
    given = config("exaone4", sliding_window_pattern=pattern, layer_types=None)
    assert class_form(given)["layer_types"] == ["sliding_attention", "full_attention"]
    assert class_form(given | {"sliding_window": None})["layer_types"] == ["full_attention"] * 2


def test_longrope_of_transformers_5_is_refused_beyond_its_switch() -> None:
    long = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    with pytest.raises(ExportError, match="--max-context 64"):
        max_context_of(config("phi3", rope_parameters={**long, "original_max_position_embeddings": 64}), None)


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_transformers_5_supposes_the_same_for_keys_that_are_absent(model_type: str) -> None:
    given = {"layer_types": ["conv"] * 32} if model_type == "lfm2_moe" else {}  # which may not be absent
    theirs = built_config(class_form(DEFAULTS[model_type] | given), model_type)
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


def test_every_supported_architecture_says_what_it_reads() -> None:
    assert tuple(READ) == SUPPORTED


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gemma2", {"final_logit_softcapping": 30, "attn_logit_softcapping": 50, "query_pre_attn_scalar": 16.0}),
        ("llama", {"rms_norm_eps": 1}),
        ("gpt2", {"layer_norm_epsilon": 1}),
        ("mistral", {"num_key_value_heads": None}),
        ("gemma2", {"num_key_value_heads": None}),
        ("qwen2", {"max_window_layers": None, "use_sliding_window": False, "layer_types": None}),
    ],
)
def test_numbers_as_other_writers_of_json_have_them_are_read(model_type: str, changes: dict[str, Any]) -> None:
    built = built_config(class_form(config(model_type, **changes)), model_type)
    wanted = {key: value for key, value in changes.items() if value is not None}
    assert {key: getattr(built, key) for key in wanted} == wanted
    if "num_key_value_heads" in changes:
        assert built.num_key_value_heads == built.num_attention_heads


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gemma2", {"num_hidden_layers": None}),
        ("gemma2", {"query_pre_attn_scalar": 16.5}),
        ("qwen2", {"max_window_layers": None, "use_sliding_window": True}),
        ("smollm3", {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}),
        ("llama", {"rope_theta": 10**400}),
        ("llama", {"rms_norm_eps": 10**400}),
    ],
)
def test_what_the_class_would_stumble_over_is_one_sentence(model_type: str, changes: dict[str, Any]) -> None:
    form = {key: value for key, value in config(model_type, **changes).items() if value is not None}
    form |= {key: None for key, value in changes.items() if value is None and key != "num_hidden_layers"}
    if model_type == "smollm3":
        form.pop("sliding_window", None)
    with pytest.raises(ExportError, match=r"^[^\n]+: correct (it|its config)\.$"):
        built_config(class_form(form), "somewhere")


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("lfm2", {"hidden_size": 3}, "4 attention heads of a hidden_size of 3, which leaves them no values: correct"),
        ("lfm2_moe", {"layer_types": None}, "gives no layer_types, which say what layers attend: fetch"),
        ("qwen3_moe", {"num_experts": 1 << 40}, "num_experts as 1099511627776, which must be a whole number from 0 to"),
        ("lfm2", {"num_attention_heads": 1000}, "1000 attention heads of a hidden_size of 64"),
        ("gpt_oss", {"swiglu_limit": 1e300}, r"swiglu_limit as 1e\+300, which must be a number above 0: correct it"),
        ("granitemoehybrid", {"num_local_experts": 4, "num_experts_per_tok": 0}, "each token to 0 of 4 experts"),
        ("granitemoehybrid", {"num_local_experts": 4, "num_experts_per_tok": 5}, "each token to 5 of 4 experts"),
        ("granitemoehybrid", {"num_local_experts": None}, "num_local_experts as null, which must be"),
        (
            "qwen3_5_text",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1e-300}},
            "partial_rotary_factor as 1e-300, by which nothing of a head of 32 values rotates: correct it",
        ),
    ],
)
def test_sizes_that_leave_nothing_are_told_with_what_to_correct(
    model_type: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ExportError, match=words):
        class_form(config(model_type, **changes))


@pytest.mark.parametrize("number", [None, 0, -1, 1025, 2.0, "2"])
def test_numbers_of_layers_that_cannot_be_are_told_by_their_key(number: object) -> None:
    for model_type, key in (("llama", "num_hidden_layers"), ("gpt2", "n_layer")):
        with pytest.raises(
            ExportError, match=rf"gives {key} as (null|{number!r}), which must be a whole number from 1 to"
        ):
            check_architecture(config(model_type, **{key: number}))


def test_null_is_what_makers_mean_by_it() -> None:
    """No multiplier is one of one, no limit of steps none at all; a factor may be written as a whole number."""
    assert built_config(class_form(config("lfm2_moe", routed_scaling_factor=1)), "").routed_scaling_factor == 1.0
    assert built_config(class_form(config("lfm2", block_ffn_dim_multiplier=None)), "").block_ffn_dim_multiplier == 1.0
    limits = [
        built_config(class_form(config("granitemoehybrid", **given)), "").time_step_limit
        for given in ({"time_step_limit": None}, {})
    ]
    assert limits[0] == limits[1]
