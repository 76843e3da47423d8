"""Files that `ollama create` writes are the models that they were made of, or are refused for what is lost."""

from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest

from reader_edge.models.model_source import load_tokenizer
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_runtime.errors import ExportError, GgufError, UnsupportedArchitectureError
from tests.export.gguf_models import build_source, gguf_weights
from tests.export.source_models import load_model
from tests.export.sources.gguf.gguf_checks import check
from tests.export.sources.gguf.ollama_files import OLLAMA_MODELS, write_as_ollama

_PLAIN = {"rope_type": "default", "rope_theta": 1e4}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# By model type, what llama.cpp's files cannot say, and Ollama's can; and what Ollama's cannot.
_CHANGES: dict[str, dict[str, Any]] = {
    "olmo3": {"rope_parameters": {"full_attention": {**_PLAIN, **_YARN, "attention_factor": 1.5}}},
    "lfm2_moe": {"routed_scaling_factor": 1.5},
    "phi3": {"partial_rotary_factor": 1.0},
    "gemma3n_text": {"intermediate_size": 96, "final_logit_softcapping": 30.0, "altup_correct_scale": False},
}
_CHANGES["olmo3"]["rope_parameters"]["sliding_attention"] = _PLAIN
_NO_FACTORS = {f"rope_factors_{kind}.weight": np.zeros(0, np.float32) for kind in ("long", "short")}


@pytest.mark.parametrize("model_type", OLLAMA_MODELS)
def test_every_architecture_of_its_converter_has_the_same_logits_from_a_file(model_type: str, tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path / "source", **_CHANGES.get(model_type, {}))
    tensors = _NO_FACTORS if model_type == "phi3" else {}
    check(write_as_ollama(model, tmp_path, tensors=tensors), model)


@pytest.mark.parametrize(
    ("model_type", "changes", "values"),
    [
        ("gemma4_text-experts", {}, {}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}, {}),
        ("llama", {"head_dim": 32}, {}),
        ("llama", {"head_dim": 8}, {"vocab_size": 0}),
        ("qwen3_moe", {"norm_topk_prob": True}, {}),
        ("qwen3_moe", {"norm_topk_prob": False}, {"source_quantization": "hf_fp8", "source_fp8_tensors": ["x"]}),
        ("qwen3_5_text", {}, {"full_attention_interval": 4}),
        (
            "gemma3_text",
            {"rope_scaling": {**_YARN, "beta_fast": 64.0}},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.extrapolation_factor": 1.0,
                "rope.scaling.beta_fast": 64.0,
                "rope.scaling.beta_slow": 1.0,
            },
        ),
    ],
)
def test_what_models_differ_in_is_kept(
    model_type: str, changes: dict[str, Any], values: dict[str, Any], tmp_path: Path
) -> None:
    model = build_source(model_type, tmp_path / "source", **changes)
    check(write_as_ollama(model, tmp_path, values), model)


@pytest.mark.parametrize("rope_type", ["", "default"])
def test_positions_of_mistral_that_are_not_stretched_are_given_as_nought(rope_type: str, tmp_path: Path) -> None:
    model = build_source("mistral", tmp_path / "source")
    own: dict[str, Any] = {"rope.dimension_count": 32, "attention.head_dim": None, "rope.scaling.type": rope_type}
    own |= {f"rope.scaling.{key}": 0.0 for key in ("factor", "yarn_beta_fast", "yarn_beta_slow")}
    path = write_as_ollama(model, tmp_path, own, architecture="mistral3")
    assert find_source(path, None).architecture == "mistral"
    check(path, model)


def test_factors_tell_which_part_of_a_head_rotates(tmp_path: Path) -> None:
    """Of Phi-4 mini, of which the converter says that all does."""
    factors = {"short_factor": [1.0 + i / 8 for i in range(4)], "long_factor": [2.0 + i for i in range(4)]}
    changes = {"rope_scaling": {"type": "longrope", **factors}, "original_max_position_embeddings": 64}
    model = build_source("phi3", tmp_path / "source", **changes, partial_rotary_factor=0.5)
    scaling = {"attn_factor": model.model.rotary_emb.attention_scaling, "original_context_length": 64}
    tensors = {f"rope_factors_{name}.weight": np.array(factors[f"{name}_factor"], "f4") for name in ("long", "short")}
    own = {f"rope.scaling.{key}": value for key, value in scaling.items()}
    path = write_as_ollama(model, tmp_path, own, tensors=tensors)
    check(path, model, max_context=64)


def test_experts_of_qwen_3_that_stay_apart_are_read(tmp_path: Path) -> None:
    """As most folders have them; also in their blocks."""
    model = build_source("qwen3_moe", tmp_path / "source", norm_topk_prob=True, moe_intermediate_size=64)
    tensors: dict[str, Any] = {}
    for name, weight in gguf_weights(model, "qwen3moe").items():
        if name.endswith("_exps.weight"):
            block, part = name.split(".ffn_")
            own = f"{part.removesuffix('_exps.weight')}_proj.weight"
            tensors |= {f"{block}.mlp.experts.{expert}.{own}": each for expert, each in enumerate(weight)}
            tensors[name] = None
    check(write_as_ollama(model, tmp_path, tensors=tensors), model)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    path = write_as_ollama(model, tmp_path / "q8_0.gguf", tensors=tensors, kind=q8_0)
    weights = find_source(path, None).open_model().weights
    for part in ("gate_up_proj", "down_proj"):
        name = f"model.layers.1.mlp.experts.{part}"
        blocks, expected = weights.expert_blocks(name, 5), model.get_parameter(name)[5].detach().numpy()
        assert weights.stored_type(name) == "Q8_0"
        np.testing.assert_array_equal(blocks.dequantized(slice(None)), weights.read(name)[5])
        np.testing.assert_allclose(weights.read(name)[5], expected, atol=2e-3)
    tensors["blk.1.mlp.experts.5.up_proj.weight"] = None
    path = write_as_ollama(model, tmp_path / "missing.gguf", tensors=tensors)
    with pytest.raises(ExportError, match=r"holds 0 tensors instead of one for blk\.1\.mlp\.experts\.5\.up_proj"):
        load_model(find_source(path, None))


def test_gpt_oss_may_come_from_its_makers_own_checkpoint(tmp_path: Path) -> None:
    """Queries, keys and values are one tensor there."""
    model = build_source("gpt_oss", tmp_path / "source")
    weights = gguf_weights(model, "gpt-oss")
    tensors: dict[str, Any] = {}
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [f"blk.{layer}.attn_{part}.{kind}" for part in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate([weights[part] for part in parts])
            tensors |= dict.fromkeys(parts)
    check(write_as_ollama(model, tmp_path, tensors=tensors), model)


_OLDER: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {  # architecture, values, parts of tensors' names
    "gpt_oss": (
        "gptoss",
        {"expert_feed_forward_length": None, "rope.scaling.type": None, "tokenizer.ggml.pre": "default"},
        {".attn_output.": ".attn_out.", ".attn_sinks.weight": ".attn_sinks", ".post_attention_norm.": ".ffn_norm."},
    ),
    "olmo3": ("olmo3", {}, {}),
    "qwen3_5_text": ("qwen35", {"attention.head_count_kv": [0, 2]}, {".ssm_dt.bias": ".ssm_dt"}),
    "qwen3_5_moe_text": ("qwen35moe", {"attention.head_count_kv": [0, 2]}, {".ssm_dt.bias": ".ssm_dt"}),
    "lfm2": ("lfm2", {"feed_forward_length": 12288}, {"token_embd_norm": "output_norm"}),
    "gemma4_text-experts": ("gemma4", {}, {".ffn_down_exps.scale": ".ffn_gate_inp.per_expert_scale"}),
    "gemma3_text": ("gemma3", {"rope.freq_base": None, "rope.global.freq_base": 1e6}, {}),
    "ministral3": (
        "mistral3",
        {
            "rope.scaling.yarn_log_multiplier": None,
            "rope.scaling.mscale_all_dim": 1.0,
            "rope.scaling.mscale": 1.0,
            "attention.temperature_scale": None,
            "rope.scaling_beta": 0.5,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", _OLDER)
def test_files_of_older_versions_are_the_same_models(name: str, tmp_path: Path) -> None:
    architecture, values, parts = _OLDER[name]
    model = build_source(name, tmp_path / "source", **_CHANGES.get(name, {}))

    def rename(tensor: str) -> str:
        for part, own in parts.items():
            tensor = tensor.replace(part, own)
        return tensor

    check(write_as_ollama(model, tmp_path, values, rename, architecture=architecture), model)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"block_count": 3, "nextn_predict_layers": 1}, ("blk.2.nextn.eh_proj.weight", "blk.2.attn_norm.weight")),
        ({}, ("mtp.fc.weight", "mtp.layers.0.attn_norm.weight")),
    ],
)
def test_mtp_layers_are_left_out_by_both_names(values: dict[str, Any], names: tuple[str, str], tmp_path: Path) -> None:
    model = build_source("qwen3_5_text", tmp_path / "source")
    tensors = dict(zip(names, (np.ones((64, 128), "f4"), np.ones(64, "f4")), strict=True))
    path = write_as_ollama(model, tmp_path, values, tensors=tensors)
    assert find_source(path, None).left_out == ("layers that guess later tokens",)
    check(path, model)


def test_gemma_3_has_no_tokens_without_an_embedding(tmp_path: Path) -> None:
    """Of the one that stands for images the converter keeps the name alone."""
    model = build_source("gemma3_text", tmp_path / "source")
    plain = GgufFile.open(write_as_ollama(model, tmp_path / "plain.gguf")).metadata
    added = {"tokens": "<image_soft_token>", "scores": -1000.0, "token_type": 4}
    names = {f"tokenizer.ggml.{name}": value for name, value in added.items()}
    longer = {key: [*cast(list[Any], plain[key]), value] for key, value in names.items()}
    path = write_as_ollama(model, tmp_path, longer)
    check(path, model)
    text = "a <image_soft_token> of a tea pot"
    ids = [load_tokenizer(str(file)).encode(text) for file in (path, tmp_path / "plain.gguf")]
    assert ids[0] == ids[1]
    longer["tokenizer.ggml.token_type"][-1] = 1  # a word, not an addition
    with pytest.raises(GgufError, match="has 321 tokens, but embeddings of 320"):
        find_source(write_as_ollama(model, tmp_path / "word.gguf", longer), None)


@pytest.mark.parametrize(
    ("num_layers", "context", "factor"), [(34, 1 << 17, 8.0), (34, 1 << 15, 1.0), (26, 1 << 17, 1.0)]
)
def test_gemma_3_is_scaled_as_its_makers_have_it(num_layers: int, context: int, factor: float, tmp_path: Path) -> None:
    """The converter drops a linear factor, which models of 4, 12 and 27 billion weights have."""
    model = build_source("gemma3_text", tmp_path / "source", layer_types=None, num_hidden_layers=num_layers)
    values = {"context_length": context}
    path = write_as_ollama(model, tmp_path, values)
    assert (find_source(path, None).config["rope_scaling"] or {"factor": 1.0})["factor"] == factor
    given = {**values, "rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    path = write_as_ollama(model, tmp_path / "given.gguf", given)
    assert find_source(path, None).config["rope_scaling"]["factor"] == 2.0


@pytest.mark.parametrize(
    ("model_type", "values", "words"),
    [
        (
            "qwen3",
            {"rope.freq_base": 0.0},
            r"base of its positions \(rope.freq_base\), which its converter did not find",
        ),
        ("llama", {"rope.freq_base": None}, "base of its positions .*: give another file .* in Hugging Face format"),
        ("olmo3", {"rope.freq_base": None}, "gives no olmo2.rope.freq_base: give another file"),
        ("lfm2", {"rope.freq_base": None}, "gives no lfm2.rope.freq_base: give another file"),
        ("gpt_oss", {"rope.freq_base": 0.0}, "does not give the base of its positions"),
        ("olmo3", {"rope.scaling.type": None}, "scales attention by 1.5, which cannot be exported"),
        ("olmo3", {"rope.scaling.yarn_attn_factor": 1.5}, "scales attention by 1.5, which cannot be exported"),
        ("phi3", {"rope.scaling.attn_factor": 1.5}, "scales attention by 1.5 instead of 1: give another file"),
        ("qwen3_5_text", {"ssm.v_head_reordered": False}, "'qwen35.ssm.v_head_reordered' to False"),
        ("qwen3_5_moe_text", {"norm_top_k_prob": False}, "does not let the shares of chosen experts add up to one"),
        ("qwen3_5_moe_text", {"expert_feed_forward_length": 47}, "ffn_gate_exps.weight of the shape"),
        ("lfm2_moe", {"expert_weights_scale": -1.0}, "expert_weights_scale as -1.0"),
        ("qwen3_5_text", {"attention.head_count_kv": [2, 0]}, "for which its architecture has no place"),
        ("qwen3_5_text", {"attention.head_count_kv": [0, 2, 2]}, r"head_count_kv as \[0, 2, 2\]"),
        ("qwen3_5_text", {"attention.head_count_kv": [0, 0]}, r"layers of \[\] heads of keys and values"),
    ],
)
def test_what_was_lost_is_refused_by_name(model_type: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = build_source(model_type, tmp_path / "source", **_CHANGES.get(model_type, {}))
    path = write_as_ollama(model, tmp_path, values)
    with pytest.raises(ExportError, match=words):
        load_model(find_source(path, None))


def test_a_tensor_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    model = build_source("qwen3_5_text", tmp_path / "source")
    tensors = {"blk.0.ssm_dt": np.ones(4, "f4")}
    path = write_as_ollama(model, tmp_path, tensors=tensors)
    with pytest.raises(ExportError, match=r"'blk\.0\.ssm_dt', for which its architecture has no place"):
        load_model(find_source(path, None))


def test_layers_of_several_numbers_of_heads_are_refused(tmp_path: Path) -> None:
    model = build_source("lfm2", tmp_path / "source", layer_types=["full_attention"] * 2)
    values = {"attention.head_count_kv": [1, 2]}
    path = write_as_ollama(model, tmp_path, values)
    with pytest.raises(UnsupportedArchitectureError, match=r"layers of \[1, 2\] heads of keys and values"):
        find_source(path, None)
