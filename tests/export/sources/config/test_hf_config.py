"""What makers say under other keys, or leave out, has one form: that of the class of transformers."""

import pytest

from reader_edge_export.sources.architectures import SUPPORTED, check_architecture
from reader_edge_export.sources.blank_model import built_config
from reader_edge_export.sources.config.config_keys import READ
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_runtime.errors import UnsupportedArchitectureError
from tests.export.record_transformers5 import DEFAULTS
from tests.tiny_models import tiny_config


def test_a_base_inside_the_scaling_is_read() -> None:
    form = hf_config(tiny_config("llama", rope_scaling={"rope_type": "default", "rope_theta": 1e6}))
    assert form["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_a_pattern_of_windows_becomes_the_type_of_each_layer(key: str) -> None:
    form = hf_config(tiny_config("gemma3_text", layer_types=None, num_hidden_layers=4, **{key: 2}))
    assert form["layer_types"] == ["sliding_attention", "full_attention"] * 2


def test_gemmas_newer_activation_overrules_the_older() -> None:
    assert hf_config(tiny_config("gemma", hidden_act="gelu", hidden_activation="gelu_pytorch_tanh"))["hidden_act"] == (
        "gelu_pytorch_tanh"
    )
    assert hf_config(tiny_config("gemma", hidden_act="relu", hidden_activation=None))["hidden_act"] == "relu"


def test_the_older_activation_of_gemma_is_the_approximate_one_that_its_makers_meant() -> None:
    assert hf_config(tiny_config("gemma", hidden_act="gelu"))["hidden_act"] == "gelu_pytorch_tanh"


def test_layers_of_lfm2_are_told_by_type_or_by_the_indices_of_those_that_attend() -> None:
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


def test_layers_of_qwen3_5_are_told_by_type_or_by_their_interval() -> None:
    older = tiny_config("qwen3_5_text", layer_types=None, full_attention_interval=2)
    assert hf_config(older) == hf_config(tiny_config("qwen3_5_text"))


@pytest.mark.parametrize("pattern", ["LG", 2])
def test_exaones_pattern_is_letters_or_a_number(pattern: str | int) -> None:
    given = tiny_config("exaone4", sliding_window_pattern=pattern, layer_types=None)
    assert hf_config(given)["layer_types"] == ["sliding_attention", "full_attention"]
    assert hf_config(given | {"sliding_window": None})["layer_types"] == ["full_attention"] * 2


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_transformers_5_supposes_the_same_for_keys_that_are_absent(model_type: str) -> None:
    given = {"layer_types": ["conv"] * 32} if model_type == "lfm2_moe" else {}  # which may not be absent
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
