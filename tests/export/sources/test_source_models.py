"""Modules of sources compute what config.json says, what transformers 5 does, and the same a layer at a time."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.calibration.calibration import Calibration, InputMoments
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.architectures import RECURRENT, SUPPORTED
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder import folder_weights
from reader_edge_export.sources.layered_model import LayeredModel, SteadyTopk, best
from reader_edge_export.trace.tracing import TracedLayer
from reader_edge_export.trace.tree_config import survey
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import TinyModel
from tests.export.record_transformers5 import RECORDED, TOKEN_IDS, last_logits
from tests.export.source_models import chain_logits, layered, load_folder, load_model, open_source
from tests.reference_model.reference_check import check_layers, check_module, reference_model
from tests.tiny_models import MAX_CONTEXT, TINY_MODELS, build_tiny_model


def test_the_best_are_those_of_topk() -> None:
    scores = torch.randn(50, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    values, places = best(scores, 6)
    expected, expected_places = scores.topk(6)
    assert torch.equal(values, expected)
    assert torch.equal(places, expected_places)
    values.sum().backward()
    assert scores.grad is not None
    assert scores.grad.sum() == 50 * 6


def test_the_first_of_those_that_tie_are_chosen() -> None:
    scores = torch.tensor([[0.0, 1, 3, 1, 1 + 1e-7, 0], [0.0] * 6, [2, 2 - 1e-5, 2, 2 + 1e-7, 2, -torch.inf]])
    assert best(scores, 3)[1].tolist() == [[2, 1, 3], [0, 1, 2], [0, 2, 3]]


def test_modules_choose_so_while_it_is_entered() -> None:
    scores = torch.zeros(1, 300)
    with SteadyTopk():
        chosen = [torch.topk(scores, k=4, dim=-1), scores.topk(4), torch.topk(scores, 4, dim=1)]
    assert [places.tolist() for _, places in chosen] == [[[0, 1, 2, 3]]] * 3
    assert isinstance(scores.topk(4), torch.return_types.topk)


TEXTS = [list(range(3, 40)), [7], list(range(90, 60, -1))]


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_logits_are_those_of_the_whole_model(model_type: str, tiny_model: TinyModel) -> None:
    whole = load_folder(tiny_model(model_type))
    for token_ids, logits in zip(TEXTS, layered(tiny_model(model_type)).logits(TEXTS), strict=True):
        torch.testing.assert_close(logits, chain_logits(whole, token_ids), rtol=1e-5, atol=1e-5)


def test_matrices_take_no_memory_before_and_after(tiny_model: TinyModel) -> None:
    model = layered(tiny_model("llama"))
    matrices = [parameter for parameter in model.source.skeleton.parameters() if parameter.ndim > 1]
    for _ in model.logits(TEXTS):
        held = [matrix for matrix in model.source.skeleton.parameters() if matrix.untyped_storage().nbytes() > 1000]
        assert len(held) <= 1  # the head
    assert {matrix.untyped_storage().nbytes() for matrix in matrices} == {4}


def test_layers_that_are_not_found_are_one_sentence(tiny_model: TinyModel) -> None:
    source = open_source(tiny_model("llama"))
    source.skeleton.config.num_hidden_layers = 77
    with pytest.raises(UnsupportedArchitectureError, match="The layers of 'llama' were not found"):
        LayeredModel(source)


def test_a_calibration_whose_file_was_cut_is_one_sentence() -> None:
    file = BytesIO()
    calibration = Calibration(file)
    moments = InputMoments([np.eye(4, dtype=np.float32)], 3)
    calibration.add_inputs(["a"], moments)
    np.testing.assert_array_equal(calibration.inputs_of("a").grams[0], moments.grams[0])
    file.truncate(10)
    with pytest.raises(ExportError, match="became shorter"):
        calibration.inputs_of("a")


_GROWING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12}


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": parameters}


@pytest.mark.parametrize("name", RECORDED)
def test_the_reference_model_computes_what_transformers_5_computes(name: str, folder_of_5: TinyModel) -> None:
    model = load_folder(folder_of_5(name))
    computed = reference_model(RECORDED[name]["config"], dict(model.named_parameters())).logits(TOKEN_IDS)
    assert np.abs(np.array(last_logits(computed)) - RECORDED[name]["logits"]).max() < 1e-4


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_module_and_its_traced_layers_are_what_config_json_says(name: str, tiny_model: TinyModel) -> None:
    folder = tiny_model(name)
    with quiet_libraries():
        model = open_source(folder)
        check_module(model, _config(folder))
        check_layers(survey(model, MAX_CONTEXT), _config(folder), MAX_CONTEXT)


@pytest.mark.parametrize(
    ("model_type", "wrong", "words"),
    [
        ("llama", _rope(rope_theta=10010.0), "frequencies of model.rotary_emb"),
        ("llama", _rope(rope_type="linear", factor=2.0), "frequencies"),
        ("llama", {"rms_norm_eps": 1e-5}, "epsilon of model.layers.0.input_layernorm"),
        ("llama", {"hidden_act": "gelu"}, "activation of model.layers.0.mlp"),
        ("mistral", {"sliding_window": None}, "logits"),
        ("mistral", {"sliding_window": 9}, "logits"),
        ("ministral3", _rope(**_GROWING, llama_4_scaling_beta=0.1), "growth of queries"),
        ("ministral3", _rope(**_GROWING, llama_4_scaling_beta=0.5, rope_theta=1e4), "magnitude"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "logits"),
        ("qwen3", _rope(rope_theta=5e5), "frequencies"),
        ("gemma", {"hidden_act": "relu"}, "activation"),
        ("gemma2", {"attn_logit_softcapping": None}, "logits"),
        ("gemma2", {"final_logit_softcapping": None}, "logits"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "logits"),
        (
            "gemma3_text",
            _rope(sliding_attention={"rope_theta": 1e6}),
            "frequencies of sliding_attention in model.rotary",
        ),
        ("gemma3_text", _rope(full_attention={"rope_theta": 1e4}), "frequencies of full_attention in model.rotary"),
        ("phi", _rope(partial_rotary_factor=0.25), "number of frequencies"),
        ("phi3", {"sliding_window": None}, "logits"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "logits"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": False}, "logits"),
        ("gpt2", {"activation_function": "relu"}, "activation"),
        ("granite", {"attention_multiplier": 1.0}, "logits"),
        ("granite", {"logits_scaling": 1.0}, "logits"),
        ("granite", {"residual_multiplier": 1.0}, "logits"),
        ("granite", {"embedding_multiplier": 2.0}, "logits"),
        ("olmo3", _rope(full_attention={"rope_type": "default"}), "frequencies of full_attention in model.rotary"),
        ("olmo3", {"layer_types": ["full_attention", "sliding_attention"]}, "logits"),
        ("exaone4", {"layer_types": ["full_attention", "sliding_attention"]}, "logits"),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}, "logits"),
        ("seed_oss", {"rms_norm_eps": 1e-5}, "epsilon"),
        ("arcee", {"hidden_act": "relu"}, "activation"),
        ("arcee", {"rms_norm_eps": 1e-4}, "epsilon"),
        ("hunyuan_v1_dense", _rope(rope_theta=1e6), "frequencies"),
        ("ernie4_5", {"rms_norm_eps": 1e-6}, "epsilon"),
        ("glm4", _rope(rope_theta=1e4, partial_rotary_factor=0.25), "number of frequencies"),
        ("internlm3", {"hidden_act": "relu"}, "activation"),
        ("apertus", _rope(rope_type="default", rope_theta=1e4), "frequencies"),
        ("ernie4_5_moe", {"moe_k": 2}, "logits"),
        ("qwen3_next", {"norm_topk_prob": False}, "logits"),
        ("phimoe", {"router_jitter_noise": 0.0}, "logits"),
        ("starcoder2", {"norm_epsilon": 1e-4}, "epsilon"),
        ("starcoder2", {"sliding_window": None}, "logits"),
        ("mixtral", {"num_experts_per_tok": 2}, "logits"),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.6]}, "logits"),
        ("gemma3n_text", {"altup_active_idx": 0}, "logits"),
        ("gemma3n_text", {"altup_correct_scale": False}, "logits"),
        ("muse_glimmer_text", {"post_norm_eps": 1e-8}, "epsilon of model.layers.0.post_attention_layernorm"),
        ("muse_glimmer_text", {"qk_scale_factor": 3.87}, "logits"),
        ("cohere", {"logit_scale": 0.25}, "logits"),
        ("cohere2", {"layer_types": ["full_attention", "sliding_attention"]}, "logits"),
        ("cohere2", {"layer_norm_eps": 1e-6}, "epsilon"),
        ("qwen3_5_text", {"rms_norm_eps": 1e-5}, "epsilon"),
        ("qwen3_5_text", _rope(rope_theta=1e4, partial_rotary_factor=0.25), "number of frequencies"),
        ("granitemoehybrid", {"rms_norm_eps": 1e-5}, "epsilon"),
        ("granitemoehybrid", {"position_embedding_type": "rope"}, "logits"),
        ("granitemoehybrid", {"time_step_limit": [0.0, 0.1]}, "logits"),
        ("granitemoehybrid", {"residual_multiplier": 1.0}, "logits"),
        ("falcon_h1", {"key_multiplier": 1.1}, "logits"),
        ("falcon_h1", {"ssm_out_multiplier": 1.1}, "logits"),
        ("falcon_h1", {"ssm_multipliers": [0.8, 0.6, 1.3, 1.5, 0.8]}, "logits"),
        ("falcon_h1", {"mlp_multipliers": [1.0, 0.6]}, "logits"),
        ("falcon_h1", {"mamba_norm_before_gate": True}, "logits"),
        ("falcon_h1", {"time_step_limit": [0.0, 0.1]}, "logits"),
        ("qwen3_moe", {"norm_topk_prob": False}, "logits"),
        ("qwen3_moe", {"num_experts_per_tok": 2}, "logits"),
        ("gpt_oss", {"swiglu_limit": 7.0}, "logits"),
        ("gpt_oss", {"swiglu_alpha": 1.702}, "logits"),
        ("gpt_oss", {"num_experts_per_tok": 4}, "logits"),
        ("gpt_oss", {"layer_types": ["full_attention", "sliding_attention"]}, "logits"),
        ("qwen3_5_moe_text", {"num_experts_per_tok": 2}, "logits"),
        ("lfm2_moe", {"routed_scaling_factor": 1.0}, "logits"),
        ("lfm2_moe", {"norm_topk_prob": False}, "logits"),
        ("lfm2", {"norm_eps": 1e-4}, "epsilon of model.layers.0.operator_norm"),
        ("lfm2", _rope(rope_theta=1e5), "frequencies"),
        ("olmo2", {"num_attention_heads": 4, **_rope(rope_theta=1e6)}, "frequencies"),
    ],
)
def test_a_key_that_is_read_wrongly_is_caught(
    model_type: str, wrong: dict[str, Any], words: str, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = find_source(tiny_model(model_type), None)
    monkeypatch.setattr(folder_weights, "hf_config", lambda config: hf_config(config) | wrong)
    with pytest.raises(AssertionError, match=f"^{words}"):
        load_model(source)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.5},
    ],
)
def test_a_lost_scaling_is_caught(scaling: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_source(build_tiny_model("llama", tmp_path / "source", rope_scaling=scaling), None)
    load_model(source)
    lost = {**scaling, "attention_factor": 1.0}
    monkeypatch.setattr(folder_weights, "hf_config", lambda config: hf_config(config) | {"rope_parameters": lost})
    with pytest.raises(AssertionError, match=r"^magnitude of model\.rotary_emb"):
        load_model(source)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sliding_window": 9},
        {"sliding_window": None},
        {"scale": 0.25},
        {"softcap": 0.0},
        {"head_dim": 32},
        {"num_kv_heads": 4},
    ],
)
def test_a_layer_that_asks_for_other_attention_is_caught(wrong: dict[str, Any], tiny_model: TinyModel) -> None:
    folder = tiny_model("gemma2")
    with quiet_libraries():
        layers = survey(open_source(folder), MAX_CONTEXT)
    attention = layers[0].attention
    assert attention is not None
    with pytest.raises(AssertionError, match="attention in layer 0"):
        check_layers([TracedLayer(replace(attention, **wrong)), layers[1]], _config(folder), MAX_CONTEXT)


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_layer_that_keeps_other_states_is_caught(model_type: str, tiny_model: TinyModel) -> None:
    folder = tiny_model(model_type)
    with quiet_libraries():
        first, *others = survey(open_source(folder), MAX_CONTEXT)
    wider = replace(first, states={kind: (sizes[0] + 1, *sizes[1:]) for kind, sizes in first.states.items()})
    for wrong in (wider, replace(first, states={}, capsules={})):
        with pytest.raises(AssertionError, match="states of layer 0"):
            check_layers([wrong, *others], _config(folder), MAX_CONTEXT)


LIMIT = 5e-5  # of logits up to 6, recorded on another machine


@pytest.mark.parametrize("name", RECORDED)
def test_a_folder_of_transformers_5_computes_what_transformers_5_computes(name: str, folder_of_5: TinyModel) -> None:
    computed = last_logits(chain_logits(load_folder(folder_of_5(name)), TOKEN_IDS))
    assert np.abs(np.array(computed) - RECORDED[name]["logits"]).max() < LIMIT


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_folders_of_transformers_4_compute_the_same(model_type: str, folder_of_5: TinyModel, tmp_path: Path) -> None:
    fifth = folder_of_5(model_type)
    fourth = tmp_path / "fourth"
    fourth.mkdir()
    (fourth / "model.safetensors").symlink_to(fifth / "model.safetensors")
    config = json.loads((fifth / "config-4.json").read_text())
    assert "rope_parameters" not in config
    (fourth / "config.json").write_text(json.dumps(config))
    assert torch.equal(
        chain_logits(load_folder(fourth), TOKEN_IDS[:9]), chain_logits(load_folder(fifth), TOKEN_IDS[:9])
    )


@pytest.mark.parametrize("name", ["llama-llama3", "gemma3_text"])
def test_packages_of_transformers_5_compute_the_same(name: str, folder_of_5: TinyModel, tmp_path: Path) -> None:
    export_model(folder_of_5(name), tmp_path / "out", ExportOptions(precision="fp32"))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < LIMIT


def test_every_architecture_was_recorded_with_a_rotary_embedding_that_is_not_its_own() -> None:
    assert set(SUPPORTED) <= set(RECORDED)
    for name, recorded in RECORDED.items():
        if recorded["config"]["model_type"] not in ("gpt2", "nemotron_h"):  # which have none
            assert json.dumps(recorded["config"]["rope_parameters"]).count("000.0") >= 1, name
