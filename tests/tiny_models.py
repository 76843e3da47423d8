"""Tiny models with random weights, in Hugging Face format, made where a test needs one."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

VOCAB_SIZE = 320
MAX_CONTEXT = 128
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>"]

NUM_LAYERS = 2

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}
_WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_GROWING = {  # queries, every 12 tokens
    **_YARN,
    "original_max_position_embeddings": 12,
    "llama_4_scaling_beta": 0.5,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
_QWEN3_5 = {
    **_SIZES,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2]},
}
_LATENT = {
    **{key: value for key, value in _SIZES.items() if key != "num_key_value_heads"},
    **{"kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 8, "qk_rope_head_dim": 16, "v_head_dim": 24},
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
_ROUTED = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
}
TINY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SIZES,
    "mistral": {**_SIZES, "sliding_window": 8},
    "ministral3": {**_SIZES, "head_dim": 32, "sliding_window": 8, "rope_parameters": {"rope_theta": 1e4, **_GROWING}},
    "qwen2": {**_SIZES, "use_sliding_window": True, **_WINDOW},
    "qwen3": {**_SIZES, "head_dim": 32},
    "gemma": {**_SIZES, "head_dim": 16},
    "gemma2": {**_SIZES, "head_dim": 16, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, **_WINDOW},
    "gemma3_text": {**_SIZES, "head_dim": 16, "query_pre_attn_scalar": 24, **_WINDOW},
    "phi": {**_SIZES, "tie_word_embeddings": False, "partial_rotary_factor": 0.5},
    "phi3": {**_SIZES, "sliding_window": 8},
    "starcoder2": {**_SIZES, "sliding_window": 8},
    "smollm3": {**_SIZES, "use_sliding_window": True, **_WINDOW},
    "gpt2": {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 64,
        "n_layer": NUM_LAYERS,
        "n_head": 4,
        "n_positions": MAX_CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "granite": {**_SIZES, "attention_multiplier": 0.2, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "olmo2": {**_SIZES, "tie_word_embeddings": False},
    "olmo3": {
        **_SIZES,
        **_WINDOW,
        "tie_word_embeddings": False,
        "rope_parameters": {"full_attention": {"rope_theta": 1e4, **_YARN}, "sliding_attention": {"rope_theta": 1e4}},
    },
    "exaone4": {**_SIZES, **_WINDOW, "tie_word_embeddings": False},
    "seed_oss": {**_SIZES, "head_dim": 32, "tie_word_embeddings": False, "attention_out_bias": True},
    "arcee": {**_SIZES, "head_dim": 32, "attention_bias": True, "mlp_bias": True},
    "hunyuan_v1_dense": {**_SIZES, "head_dim": 32, "attention_bias": True},
    "ernie4_5": {**_SIZES, "head_dim": 32, "use_bias": True},
    "glm4": {**_SIZES, "head_dim": 32, "tie_word_embeddings": False},
    "internlm3": {**_SIZES, "head_dim": 32, "attention_bias": True, "mlp_bias": True},
    "apertus": {
        **_SIZES,
        "tie_word_embeddings": False,
        "rope_parameters": {**LLAMA3, "rope_theta": 1e4, "original_max_position_embeddings": 32},
    },
    "cohere": {**_SIZES, "logit_scale": 0.5, "attention_bias": True},
    "cohere2": {**_SIZES, **_WINDOW, "logit_scale": 0.5, "tie_word_embeddings": False},
    "lfm2": {
        **_SIZES,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 4,
        "conv_bias": True,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 2.0,
    },
    "qwen3_5_text": _QWEN3_5,
    "granitemoehybrid": {
        **_SIZES,
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 96,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
    },
    "gemma4_text": {
        **_SIZES,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 8,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "final_logit_softcapping": 5.0,
    },
    "gemma3n_text": {
        **_SIZES,
        "num_hidden_layers": 5,
        "layer_types": [
            "sliding_attention",
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "full_attention",
        ],
        "sliding_window": 8,
        "head_dim": 16,
        "num_kv_shared_layers": 2,
        "intermediate_size": [96, 96, 96, 96, 64],
        "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.7],
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB_SIZE - 20,
        "altup_num_inputs": 3,
        "altup_active_idx": 1,
        "laurel_rank": 24,
        "final_logit_softcapping": 5.0,
    },
    "qwen3_moe": {**_SIZES, **_EXPERTS, "head_dim": 32, "norm_topk_prob": True},
    "mixtral": {**_SIZES, "sliding_window": 8, "num_local_experts": 8, "num_experts_per_tok": 3},
    "gpt_oss": {
        **_SIZES,
        **_WINDOW,
        "head_dim": 32,
        "tie_word_embeddings": False,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "swiglu_alpha": 1.5,
        "swiglu_limit": 0.75,
        "rope_parameters": {"rope_theta": 1e4, **_YARN, "truncate": False},
    },
    "qwen3_5_moe_text": {
        **{key: value for key, value in _QWEN3_5.items() if key != "intermediate_size"},
        **_EXPERTS,
        "shared_expert_intermediate_size": 80,
    },
    "lfm2_moe": {
        **_SIZES,
        **_EXPERTS,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 4,
        "conv_bias": True,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
    },
    "deepseek_v2": {
        **_LATENT,
        **_ROUTED,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": {"rope_theta": 1e4, **_YARN, "mscale": 0.7, "mscale_all_dim": 0.3},
    },
    "deepseek_v3": {**_LATENT, **_ROUTED, "n_group": 4, "topk_group": 2, "norm_topk_prob": False},
    "glm4_moe_lite": {
        **{key: value for key, value in {**_LATENT, **_ROUTED}.items() if key != "first_k_dense_replace"},
        "q_lora_rank": 40,
        "norm_topk_prob": True,
        "mlp_layer_types": ["dense", "sparse"],
        "rms_norm_eps": 1e-5,
    },
    "minicpm3": {**_LATENT, "scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 32, "tie_word_embeddings": True},
    "ernie4_5_moe": {
        **_SIZES,
        "use_bias": True,
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_intermediate_size": 48,
        "moe_layer_start_index": 1,
    },
    "qwen3_next": {
        **_QWEN3_5,
        **_EXPERTS,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "shared_expert_intermediate_size": 80,
        "tie_word_embeddings": False,
    },
    "falcon_h1": {
        **_SIZES,
        **{"head_dim": 32, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2},
        **{"mamba_d_state": 16, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "projectors_bias": True},
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5,
        "key_multiplier": 0.4,
        "attention_in_multiplier": 1.5,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.7,
        "mlp_multipliers": [0.9, 0.6],
        "ssm_multipliers": [0.8, 0.6, 1.3, 1.5, 0.7],
        "tie_word_embeddings": False,
    },
    "phimoe": {
        **_SIZES,
        "head_dim": 32,
        "attention_bias": True,
        "lm_head_bias": True,
        "tie_word_embeddings": False,
        "num_local_experts": 8,
        "router_jitter_noise": 0.2,
    },
    "nemotron_h": {
        **_SIZES,
        **{"layers_block_type": ["linear_attention", "full_attention", "mlp"], "num_hidden_layers": 3, "head_dim": 32},
        **{"mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "use_bias": True},
        "time_step_min": 1e-20,  # below which transformers would not let steps be
        "tie_word_embeddings": False,
    },
    "muse_glimmer_text": {
        **_SIZES,
        **_WINDOW,
        "head_dim": 32,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "layer_rope_theta": [1e4, 0],
        "qk_scale_factor": 1.7,
        "output_multiplier": 0.8,
        "final_logit_softcapping": 4.0,
        "post_norm_eps": 1e-2,
    },
}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # by a name: a model type whose models are of several kinds, one
    "gemma4_text-experts": (
        "gemma4_text",
        {
            **TINY_CONFIGS["gemma4_text"],
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 48,
        },
    ),
    "nemotron_h-experts": (
        "nemotron_h",
        {
            **TINY_CONFIGS["nemotron_h"],
            "layers_block_type": ["linear_attention", "full_attention", "moe"],
            **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "moe_latent_size": 32},
            **{"moe_shared_expert_intermediate_size": 80, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5},
        },
    ),
    "granitemoehybrid-experts": (
        "granitemoehybrid",
        {**TINY_CONFIGS["granitemoehybrid"], "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48},
    ),
}
TINY_MODELS = (*TINY_CONFIGS, *VARIANTS)  # names
LEFT_TO_CI = frozenset(  # those whose parts other families have too: a sample of the tests leaves them out
    {"hunyuan_v1_dense", "ernie4_5", "glm4", "internlm3", "apertus", "ernie4_5_moe", "qwen3_next", "muse_glimmer_text"}
    | {"falcon_h1", "phimoe", "nemotron_h", "nemotron_h-experts", "starcoder2", "mixtral", "gemma3n_text"}
)


def tiny_config(name: str, /, **changes: Any) -> dict[str, Any]:
    """What one of TINY_MODELS has in its config.json, its model type included, with `changes`."""
    model_type, config = VARIANTS.get(name) or (name, TINY_CONFIGS[name])
    own = deepcopy(config)  # since classes write into what they are given
    return {"model_type": model_type, **own} | changes


def build_tiny_model(name: str, folder: Path, **changes: Any) -> Path:
    """Write a random model of TINY_MODELS, its config changed by `changes`, and a tokenizer to `folder`; return it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import reader_edge_export.sources.muse_glimmer  # noqa: F401  which names its class

    torch.manual_seed(0)
    config = AutoConfig.for_model(**tiny_config(name) | {"initializer_range": 0.1} | deepcopy(changes))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if parameter.ndim < 2 or part.endswith("_bias"):
                # Norm weights of one and biases of zero would hide a mistake with them.
                parameter.add_(0.1 * torch.randn_like(parameter))
        for part, parameter in model.named_parameters():
            if config.model_type in ("gemma4_text", "gemma3n_text") and part.endswith("q_norm.weight"):
                parameter.mul_(0.15)  # nothing else scales its scores, which would saturate
            if part.endswith("modality_router.weight"):
                parameter.mul_(40)  # whose inputs are divided by their number
            if part.endswith("router.proj.weight"):
                parameter.mul_(8)  # whose inputs have a length of one: scores that are nearly alike choose anything
        for part, buffer in model.named_buffers():
            if part.endswith("layer_scalar"):
                buffer.sub_(0.3 * torch.rand_like(buffer))
            if part.endswith(("expert_bias", "score_correction_bias")):
                buffer.add_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    build_tiny_tokenizer(folder)
    return folder


def build_tiny_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of at most VOCAB_SIZE tokens to `folder`."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trainer = ByteLevelBPETokenizer()
    lines = ["the cat sat on the mat", "def add(a, b): return a + b", "tides rise and fall twice a day"] * 5
    trainer.train_from_iterator(lines, vocab_size=VOCAB_SIZE, special_tokens=SPECIAL_TOKENS, show_progress=False)
    names = dict(zip(("bos_token", "eos_token"), SPECIAL_TOKENS, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trainer._tokenizer, **names)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    tokenizer.save_pretrained(folder)


def change_config(folder: Path, name: str = "config.json", /, **changes: Any) -> None:
    """Change keys of a folder's config, or of another of its files; `...` leaves one out."""
    fields = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    kept = {key: value for key, value in (fields | changes).items() if value is not ...}
    (folder / name).write_text(json.dumps(kept))
