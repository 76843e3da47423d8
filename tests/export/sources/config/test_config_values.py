"""Values of config.json: read as their writers mean them, or refused by their key in one sentence."""

import contextlib
from typing import Any

import pytest

from reader_edge_export.sources.architectures import SUPPORTED, check_architecture, max_context_of
from reader_edge_export.sources.blank_model import built_config
from reader_edge_export.sources.config.config_keys import READ
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_runtime.errors import ExportError, ReaderEdgeError
from tests.tiny_models import TINY_CONFIGS, tiny_config

GROWING = TINY_CONFIGS["ministral3"]["rope_parameters"]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _ropes(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


@pytest.mark.parametrize("names", ["LlamaForCausalLM", 5, {"0": "LlamaForCausalLM"}, [5]])
def test_architectures_that_are_no_list_of_texts_are_refused(names: object) -> None:
    with pytest.raises(ExportError, match=r"gives architectures as .* a list of texts: correct it\.$"):
        check_architecture(tiny_config("llama", architectures=names))


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("llama", {"rope_theta": "500000.0"}, "rope_theta as '500000.0', which must be a number above 0"),
        ("llama", {"rope_theta": None}, "rope_theta as null"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps as nan"),
        ("llama", {"hidden_size": True}, "hidden_size as True"),
        ("llama", {"hidden_size": 10**30}, "hidden_size as 1000.*, which must be a whole number from 1 to 90"),
        ("gpt_oss", {"sliding_window": 1 << 63}, "sliding_window as 9223.*, which must be a whole number from 1 to"),
        ("gpt_oss", {"swiglu_limit": 10**30}, "swiglu_limit as 1000"),
        ("granite", {"residual_multiplier": -(10**30)}, "residual_multiplier as -1000"),
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
        ("gemma3n_text", {"num_kv_shared_layers": 5}, "5 num_kv_shared_layers of 5 layers"),
        ("gemma3n_text", {"altup_active_idx": 3}, "altup_active_idx as 3 of 3 inputs"),
        ("gemma3n_text", {"altup_num_inputs": 65}, "altup_num_inputs as 65, which must be a whole number from 1 to 64"),
        ("gemma3n_text", {"activation_sparsity_pattern": [1.0] * 5}, "a list of numbers from 0 to below 1"),
        ("mixtral", {"num_hidden_layers": 1024, "num_local_experts": 8192}, "8192 experts in each of 1024 layers"),
        (
            "nemotron_h-experts",
            {"layers_block_type": ["moe"] * 1024, "num_hidden_layers": 1024, "n_routed_experts": 8192},
            "8192 experts in each of 1024 layers",
        ),
        ("qwen3_5_text", {"full_attention_interval": 3}, "full_attention_interval as 3, and other layer_types"),
        ("granitemoehybrid", {"time_step_limit": [0.1]}, "two numbers, the smaller one first"),
        ("granitemoehybrid", {"time_step_limit": [0.2, 0.1]}, "two numbers, the smaller one first"),
        ("granitemoehybrid", {"mamba_d_head": "wide"}, "a whole number above 0, or .auto."),
        ("granitemoehybrid", {"mamba_chunk_size": 10**9}, "a whole number from 1 to 1024"),
        ("granitemoehybrid", {"position_embedding_type": "learned"}, '"rope" or "nope"'),
        ("granitemoehybrid", {"layers_block_type": ["attention", "mamba"]}, "layers_block_type and other layer_types"),
        ("lfm2", {"conv_L_cache": 1}, "a whole number from 2 to "),
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
        hf_config(tiny_config(model_type, **changes))


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"])
def test_what_other_keys_are_compared_with_is_checked_first(model_type: str) -> None:
    for key, value in (("qk_rope_head_dim", "x"), ("qk_nope_head_dim", [1])):
        with pytest.raises(ExportError, match=f"gives {key} as"):
            hf_config({"qk_head_dim": 24} | tiny_config(model_type, **{key: value}))


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
        read = tiny_config(model_type, **{key: value})
        with contextlib.suppress(ReaderEdgeError):
            check_architecture(read)
            hf_config(read)
            max_context_of(read, None)


def test_longrope_of_transformers_5_is_refused_beyond_its_switch() -> None:
    long = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    with pytest.raises(ExportError, match="--max-context 64"):
        max_context_of(tiny_config("phi3", rope_parameters={**long, "original_max_position_embeddings": 64}), None)


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
    built = built_config(hf_config(tiny_config(model_type, **changes)), model_type)
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
    form = {key: value for key, value in tiny_config(model_type, **changes).items() if value is not None}
    form |= {key: None for key, value in changes.items() if value is None and key != "num_hidden_layers"}
    if model_type == "smollm3":
        form.pop("sliding_window", None)
    with pytest.raises(ExportError, match=r"^[^\n]+: correct (it|its config\.json)\.$"):
        built_config(hf_config(form), "somewhere")


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
def test_sizes_that_leave_nothing_are_refused(model_type: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        hf_config(tiny_config(model_type, **changes))


@pytest.mark.parametrize("number", [None, 0, -1, 1025, 2.0, "2"])
def test_numbers_of_layers_that_cannot_be_are_refused(number: object) -> None:
    for model_type, key in (("llama", "num_hidden_layers"), ("gpt2", "n_layer")):
        with pytest.raises(
            ExportError, match=rf"gives {key} as (null|{number!r}), which must be a whole number from 1 to"
        ):
            check_architecture(tiny_config(model_type, **{key: number}))


def test_null_is_what_makers_mean_by_it() -> None:
    """No multiplier is one of one, no limit of steps none at all; a factor may be written as a whole number."""
    assert built_config(hf_config(tiny_config("lfm2_moe", routed_scaling_factor=1)), "").routed_scaling_factor == 1.0
    assert (
        built_config(hf_config(tiny_config("lfm2", block_ffn_dim_multiplier=None)), "").block_ffn_dim_multiplier == 1.0
    )
    limits = [
        built_config(hf_config(tiny_config("granitemoehybrid", **given)), "").time_step_limit
        for given in ({"time_step_limit": None}, {})
    ]
    assert limits[0] == limits[1]
