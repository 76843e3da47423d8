"""A model of images and texts is exported as its text model: its vision tower is left unread, and reported."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.text_part import text_config_of
from reader_edge_runtime.errors import ExportError, ReaderEdgeError
from tests.export.conftest import TinyModel
from tests.export.record_transformers5 import DEFAULTS
from tests.export.source_models import chain_logits, load_model
from tests.tiny_models import build_tiny_model, build_tiny_tokenizer, change_config, tiny_config

WHOLE = {  # by the text model's type
    **{"ministral3": "mistral3", "mistral": "mistral3", "gemma3_text": "gemma3", "qwen3_5_text": "qwen3_5"},
    "gemma4_text": "gemma4",
    **{"qwen3_5_moe_text": "qwen3_5_moe", "llama": "smolvlm"},
    **{"qwen3": "qwen3_vl", "qwen2": "qwen2_5_vl", "qwen3_moe": "qwen3_vl_moe"},
    "muse_glimmer_text": "muse_glimmer",
}
AXES = {  # of text_config, whose model computes of texts what the named one does
    "qwen3": {"model_type": "qwen3_vl_text", "mrope_section": [6, 5, 5]},
    "qwen2": {"model_type": "qwen2_5_vl_text", "mrope_section": [2, 3, 3]},
    "qwen3_moe": {"model_type": "qwen3_vl_moe_text", "mrope_section": [6, 5, 5]},
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN_VISION = {**{"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}, "out_hidden_size": 64}
GEMMA4_VISION = {**VISION, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64}
TOKEN_IDS = list(range(3, 40))
TENSORS = "model.safetensors"


def whole_of(text: Path, folder: Path, **changes: Any) -> Path:
    """A model of images and texts around a tiny text model, as transformers 5 writes it, and its config changed."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    model = AutoModelForCausalLM.from_pretrained(text)
    text_type, text_config = model.config.model_type, model.config.to_dict()
    own = {"gemma4_text": GEMMA4_VISION, **dict.fromkeys(("qwen3_5_text", *AXES), QWEN_VISION)}.get(text_type)
    if text_type in AXES:
        sections = {"mrope_section": AXES[text_type]["mrope_section"]}
        text_config |= {"model_type": AXES[text_type]["model_type"]}
        text_config["rope_parameters"] |= sections
    config = AutoConfig.for_model(
        WHOLE[text_type],
        text_config=text_config,
        vision_config=own or {**VISION, "image_size": 28, "patch_size": 14},
        tie_word_embeddings=model.config.tie_word_embeddings,
        **({"out_hidden_size": 64, "projector_hidden_size": 16} if text_type == "muse_glimmer_text" else {}),
    )
    whole = AutoModelForImageTextToText.from_config(config)
    inner = whole.model.text_model if hasattr(whole.model, "text_model") else whole.model.language_model
    inner.load_state_dict(model.model.state_dict())
    whole.lm_head.load_state_dict(model.lm_head.state_dict())
    whole.save_pretrained(folder)
    build_tiny_tokenizer(folder)
    change_config(folder, **changes)
    return folder


def renamed(folder: Path, rename: Callable[[str], str]) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file({rename(name): value for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def logits(folder: Path) -> torch.Tensor:
    return chain_logits(load_model(find_source(folder, None)), TOKEN_IDS)


@pytest.mark.parametrize("name", [*WHOLE, "gemma4_text-experts"])
def test_a_model_of_images_is_its_text_model(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = whole_of(tiny_model(name), tmp_path / "whole")
    source, text_type = find_source(folder, None), tiny_config(name)["model_type"]
    own = {
        "qwen3_5_text": ("visual",),
        "qwen3_5_moe_text": ("visual",),
        "gemma4_text": ("embed_vision", "vision_tower"),
        **dict.fromkeys(AXES, ("visual",)),
        "llama": ("connector", "vision_model"),
        "muse_glimmer_text": ("vision_adapter", "vision_projection", "vision_tower"),
    }
    others = own.get(text_type, ("multi_modal_projector", "vision_tower"))
    assert (source.architecture, source.left_out) == (text_type, others)
    # Where a matrix begins in memory may change the last bit of a product by experts.
    torch.testing.assert_close(logits(folder), logits(tiny_model(name)), rtol=0, atol=1e-5)


def test_a_head_that_transformers_has_beside_images_alone_gives_the_same_logits(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    from transformers import AutoModelForImageTextToText

    folder = whole_of(tiny_model("muse_glimmer_text"), tmp_path / "whole")
    with torch.no_grad():
        expected = AutoModelForImageTextToText.from_pretrained(folder)(torch.tensor([TOKEN_IDS])).logits[0]
    torch.testing.assert_close(logits(folder), expected, atol=5e-6, rtol=0)


def test_a_model_that_hears_is_its_text_model(tiny_model: TinyModel, tmp_path: Path) -> None:
    text, folder = tiny_model("gemma3n_text"), tmp_path / "whole"
    shutil.copytree(text, folder)
    given = json.loads((folder / "config.json").read_text())
    others = {"vision_config": {}, "audio_config": {}, "audio_soft_tokens_per_image": 188}
    whole = {"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"], "text_config": given}
    (folder / "config.json").write_text(json.dumps(whole | others))
    weights = load_file(renamed(folder, lambda name: name.replace("model.", "model.language_model.", 1)) / TENSORS)
    unread = {"model.embed_audio.embedding.weight": torch.ones(2, 2)}
    unread["model.language_model.layers.4.self_attn.k_proj.weight"] = torch.ones(32, 64)  # as makers' folders have it
    save_file(weights | unread, folder / TENSORS, {"format": "pt"})
    source = find_source(folder, None)
    assert (source.architecture, source.left_out) == ("gemma3n_text", ("embed_audio",))
    assert torch.equal(logits(folder), logits(text))


def test_weights_may_have_the_names_of_modules(tiny_model: TinyModel, tmp_path: Path) -> None:
    text = tiny_model("gemma3_text")
    folder = whole_of(text, tmp_path / "whole")
    renamed(folder, lambda name: "model." + name.replace("language_model.model.", "language_model."))
    assert torch.equal(logits(folder), logits(text))


def test_layers_for_later_tokens_behind_the_others_are_left_out(tiny_model: TinyModel, tmp_path: Path) -> None:
    text = tiny_model("glm4_moe_lite")
    folder = Path(shutil.copytree(text, tmp_path / "later"))
    weights = load_file(folder / "model.safetensors")
    later = {name.replace(".1.", ".2.", 1): each.clone() for name, each in weights.items() if ".layers.1." in name}
    save_file(weights | later | {"model.layers.2.eh_proj.weight": torch.ones(64, 128)}, folder / "model.safetensors")
    assert find_source(folder, None).left_out == ("mtp",)
    assert torch.equal(logits(folder), logits(text))


@pytest.mark.parametrize("has_images", [True, False])
def test_mtp_layers_are_left_out_and_reported(has_images: bool, tiny_model: TinyModel, tmp_path: Path) -> None:
    text = tiny_model("qwen3_5_text")
    folder = whole_of(text, tmp_path / "whole") if has_images else shutil.copytree(text, tmp_path / "text")
    weights = load_file(folder / "model.safetensors") | {"mtp.fc.weight": torch.ones(64, 128)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert find_source(folder, None).left_out == (("mtp", "visual") if has_images else ("mtp",))
    assert torch.equal(logits(folder), logits(text))


def test_a_head_of_its_own_is_read_under_either_name(tmp_path: Path) -> None:
    text = build_tiny_model("ministral3", tmp_path / "text", tie_word_embeddings=False)
    folder = whole_of(text, tmp_path / "whole")
    expected = logits(text)
    assert torch.equal(logits(folder), expected)
    head = "language_model.lm_head.weight"
    other = {head: "lm_head.weight", "lm_head.weight": head}
    assert torch.equal(logits(renamed(folder, lambda name: other.get(name, name))), expected)


def test_a_head_of_smolvlm_is_its_own_whatever_its_text_model_says(tmp_path: Path) -> None:
    text = build_tiny_model("llama", tmp_path / "text", tie_word_embeddings=False)
    folder = whole_of(text, tmp_path / "whole", tie_word_embeddings=...)
    change_config(folder, text_config=json.loads((text / "config.json").read_text()) | {"tie_word_embeddings": True})
    assert torch.equal(logits(folder), logits(text))


def test_the_report_tells_what_was_left_out(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = whole_of(tiny_model("ministral3"), tmp_path / "whole")
    report = export_model(folder, tmp_path / "out", ExportOptions("fp32", check="none"))
    assert report.left_out == ("multi_modal_projector", "vision_tower")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda name: name.replace("vision_tower", "smell_tower"), "holds smell_tower.* has no place"),
        (lambda name: f"model.{name}", "lack"),
    ],
)
def test_tensors_of_neither_are_refused(
    wrong: Callable[[str], str], words: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = renamed(whole_of(tiny_model("ministral3"), tmp_path / "whole"), wrong)
    with pytest.raises(ExportError, match=words):
        logits(folder)


def test_a_tensor_under_two_names_is_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = whole_of(tiny_model("ministral3"), tmp_path / "whole")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["language_model.model.norm.weight"] + 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match="are the same weights"):
        logits(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_config": {"model_type": "mistral4"}}, "is a 'mistral4', of which ministral3 and mistral can be"),
        ({"text_config": {"model_type": []}}, r"is a \[\], of which"),
        ({"text_config": 5}, "text_config as 5: it must be an object"),
        ({"architectures": ["Mistral3Model"]}, "is a .*Mistral3Model"),
        ({"architectures": 5}, "is a 5"),
        ({"embedding_whitening": 0.5}, "'embedding_whitening' to 0.5 beside text_config"),
        ({"hidden_size": 32}, "'hidden_size' to 32 beside text_config"),
        ({"whitening": 1, "use_cache": True, "mixing": 2}, "'whitening' to 1, 'mixing' to 2 beside text_config"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "GPTQ of 3 bits"),
        ({"model_type": "qwen2_vl"}, "'qwen2_vl' has more than a text decoder"),
    ],
)
def test_unknown_keys_are_refused(changes: dict[str, Any], words: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = whole_of(tiny_model("ministral3"), tmp_path / "whole", **changes)
    with pytest.raises(ReaderEdgeError, match=words):
        find_source(folder, None)


def test_keys_that_are_given_twice_are_taken(tiny_model: TinyModel, tmp_path: Path) -> None:
    find_source(whole_of(tiny_model("ministral3"), tmp_path / "whole", hidden_size=64, vocab_size=320), None)


def test_experts_of_qwen3_vl_may_have_their_inputs_first(tiny_model: TinyModel, tmp_path: Path) -> None:
    """As its makers publish them."""
    folder = whole_of(tiny_model("qwen3_moe"), tmp_path / "whole")
    expected, weights = logits(folder), load_file(folder / "model.safetensors")
    weights |= {name: value.mT.contiguous() for name, value in weights.items() if ".experts." in name}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(folder), expected)
    name = next(name for name in weights if name.endswith("experts.down_proj"))
    save_file(weights | {name: weights[name][:4]}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ReaderEdgeError, match=r"of the shape \(4, 48, 64\) instead of \(8, 64, 48\)"):
        logits(folder)


def test_keys_beside_vision_config_are_those_of_qwen_2_5_vl_s_text_model(tiny_model: TinyModel, tmp_path: Path) -> None:
    """As its makers publish it, with an older name of its angles; later ones repeat the keys in text_config."""
    folder = whole_of(tiny_model("qwen2"), tmp_path / "whole")
    expected, path = logits(folder), folder / "config.json"
    whole = json.loads(path.read_text())
    text = whole.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    path.write_text(json.dumps({**text, **whole, "vision_token_id": 7}))
    assert torch.equal(logits(folder), expected)
    path.write_text(
        json.dumps({**text, **whole, "text_config": {**text, "image_token_id": None, "vision_token_id": 7}})
    )
    assert torch.equal(logits(folder), expected)
    path.write_text(json.dumps({**text, **whole, "whitening": 1}))
    with pytest.raises(ReaderEdgeError, match="'whitening' to 1"):
        find_source(folder, None)


def test_what_makers_of_smolvlm_leave_in_its_config_is_taken(tiny_model: TinyModel, tmp_path: Path) -> None:
    text = json.loads((tiny_model("llama") / "config.json").read_text())
    idle = {"use_resampler": False, "qk_layer_norms": False, "pixel_shuffle_factor": 4, "perceiver_config": {}}
    idle |= {"_flash_attn_2_enabled": True, "is_llama_config": True, "neftune_noise_alpha": 0.0}
    beside = {"use_reentrant_checkpointing": False, "vocab_size": 320, "hidden_size": 64, "pad_token_id": 2}
    find_source(whole_of(tiny_model("llama"), tmp_path / "whole", text_config=text | idle, **beside), None)
    change_config(tmp_path / "whole", text_config=text | {"use_resampler": True})
    with pytest.raises(ReaderEdgeError, match="'use_resampler' to True"):
        find_source(tmp_path / "whole", None)


def test_what_makers_of_gemma_3_leave_out_is_what_its_class_supposes() -> None:
    published = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    part = text_config_of({"model_type": "gemma3", "text_config": published, "eos_token_id": [1, 106]})
    assert part is not None
    assert part["eos_token_id"] == [1, 106]
    added = part.keys() - published.keys() - {"eos_token_id"}
    assert "max_position_embeddings" in added
    assert {key: part[key] for key in added} == {key: DEFAULTS["gemma3_text"][key] for key in added}
