"""Folders of speculators that draft a block, in each form that makers write, and what is refused of them."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.speculators.block_networks import BlockModule
from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator, TargetSizes
from reader_edge_runtime.errors import ExportError, ReaderEdgeError, UnsupportedArchitectureError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import TinyModel
from tests.export.speculators.speculator_folders import BLOCK, DRAFT_VOCAB_SIZE, HIDDEN_SIZE, write_block
from tests.export.speculators.test_speculator_refusals import refusal_of
from tests.tiny_models import VOCAB_SIZE

_MASK = BLOCK["dflash_config"]["mask_token_id"]
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}
_DSPARK = {"architectures": ["Qwen3DSparkModel"], "markov_rank": 4, "enable_confidence_head": True, "num_anchors": 8}
_SECOND: dict[str, Any] = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}
_PACKAGE = {"speculators_model_type": "dflash", "speculators_version": "0.9.0", "dflash_config": None}


def opened(folder: Path, num_layers: int = 2) -> OpenSpeculator:
    return OpenSpeculator.of(find_speculator(folder, cast(Any, None)), TargetSizes(num_layers, HIDDEN_SIZE, VOCAB_SIZE))


def _block(speculator: OpenSpeculator) -> BlockModule:
    assert isinstance(speculator.module, BlockModule)
    return speculator.module


def packaged(**changes: Any) -> dict[str, Any]:
    """Keys of the `speculators` package's config.json, with those of its own that are given."""
    layer = {
        key: value for key, value in BLOCK.items() if key not in ("dflash_config", "block_size", "num_target_layers")
    }
    layer |= changes.pop("layer", {})
    own = {"aux_hidden_state_layer_ids": [0, 1], "mask_token_id": _MASK, "block_size": 6}
    beside = {"transformer_layer_config": layer, "speculators_config": {"algorithm": "dflash"}, "draft_vocab_size": 320}
    return dict.fromkeys(BLOCK) | _PACKAGE | beside | own | changes


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # keys of config.json and of dflash_config
    "DFlash": ({}, {}),
    "windows": (_SLIDING, {}),
    "windows both ways": (_SLIDING | {"is_causal": False}, {}),
    "DFlash2": ({}, _SECOND | {"input_embedding_scale": 2.0, "final_logit_softcapping": 5.0}),
    "DSpark": (_DSPARK, {}),
    "speculators": (packaged(), {}),
    "a smaller vocabulary": (packaged(draft_vocab_size=DRAFT_VOCAB_SIZE), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_weight_is_read_and_the_rest_is_the_targets(form: str, tmp_path: Path) -> None:
    changes, nested = FORMS[form]
    written = write_block(tmp_path / "speculator", changes, **nested)
    found = opened(tmp_path / "speculator")
    names = {name for name, _ in written.named_parameters()}
    assert set(found.lent) == {"embed_tokens.weight", "lm_head.weight"} - (
        {"lm_head.weight"} if written.d2t is not None else set()
    )
    assert {name for name, _ in found.module.named_parameters()} == names
    for name in names - set(found.lent):
        assert torch.equal(torch.from_numpy(found.weights.read(name)), written.get_parameter(name))


@pytest.mark.parametrize(("form", "precision"), [*((form, "fp32") for form in FORMS), ("DFlash2", "int8")])
def test_a_graph_is_the_module(form: str, precision: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    changes, nested = FORMS[form]
    written = write_block(tmp_path / "speculator", changes, **nested)
    options = ExportOptions(precision, check="quick", speculator=tmp_path / "speculator")
    export_model(tiny_model("llama"), tmp_path / "out", options)
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.checks["speculator_error"] < (1e-5 if precision == "fp32" else 0.1)
    assert manifest.speculator is not None
    block = manifest.speculator.block
    assert block is not None
    assert (block.size, block.mask_token_id, block.tells_next) == (6, _MASK, written.block.tells_next)
    shown = CliRunner().invoke(main, ["info", str(tmp_path / "out")]).output
    assert f"DFlash of {6 if written.block.tells_next else 5} tokens a pass, 2 layers" in " ".join(shown.split())


def test_layers_are_numbered_by_what_leaves_them(tmp_path: Path) -> None:
    ids = {"target_layer_ids": [-1, 0, 7, 9]}
    write_block(tmp_path / "published", {"num_target_layers": 10}, **ids)
    assert opened(tmp_path / "published", 10).state_ids == (0, 1, 8, 11)  # the last one's behind the final norm
    write_block(tmp_path / "packaged", packaged(aux_hidden_state_layer_ids=[0, 1, 8, 10]))
    assert opened(tmp_path / "packaged", 10).state_ids == (0, 1, 8, 10)


def test_layers_that_are_not_given_are_those_that_makers_suppose(tmp_path: Path) -> None:
    for number, expected in ((1, (19,)), (2, (2, 34)), (5, (2, 10, 18, 26, 34))):
        changes = {"num_hidden_layers": number, "num_target_layers": 36}
        write_block(tmp_path / str(number), changes, target_layer_ids=None)
        assert opened(tmp_path / str(number), 36).state_ids == expected
    write_block(tmp_path / "packaged", packaged(aux_hidden_state_layer_ids=None))
    assert opened(tmp_path / "packaged", 36).state_ids == (2, 18, 33)


def test_the_size_of_a_block_is_read_where_it_is_or_supposed(tmp_path: Path) -> None:
    forms: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
        "beside": ({}, {}, 6),
        "inside": ({"block_size": None}, {"block_size": 8}, 8),
        "both": ({}, {"block_size": 8}, 8),
        "neither": ({"block_size": None}, {}, 16),
        "packaged": (packaged(block_size=None), {}, 8),
    }
    for name, (changes, nested, expected) in forms.items():
        write_block(tmp_path / name, changes, **nested)
        assert _block(opened(tmp_path / name)).block.size == expected


def test_windowed_layers_are_causal_unless_it_says_so(tmp_path: Path) -> None:
    forms: dict[str, tuple[dict[str, Any], tuple[bool, bool], int]] = {
        "published": (_SLIDING, (True, False), 12),
        "both ways": (_SLIDING | {"is_causal": False}, (False, False), 12),
        "causal": (_SLIDING | {"is_causal": True}, (True, True), 12),
        "packaged": (packaged(layer=_SLIDING), (True, False), 13),
        "packaged, both ways": (packaged(layer=_SLIDING, sliding_window_non_causal=True), (False, False), 13),
    }
    for name, (changes, is_causal, window) in forms.items():
        write_block(tmp_path / name, changes)
        config = _block(opened(tmp_path / name)).block_config
        assert (config.layer_is_causal, config.windows) == (is_causal, (window, 0)), name


def test_dspark_guesses_from_the_pending_token(tmp_path: Path) -> None:
    forms: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
        "DSpark": (_DSPARK, {}, True),
        "DFlash of DeepSpec": (_DSPARK | {"markov_rank": 0, "enable_confidence_head": False}, {}, True),
        "of SpecForge": ({"markov_rank": 4}, {"projector_type": "dspark"}, True),
        "as SpecForge says": ({"markov_rank": 4}, {"projector_type": "dspark", "shift_label": False}, False),
        "DFlash": ({}, {}, False),
        "packaged": (packaged(sample_from_anchor=True), {}, True),
    }
    for name, (changes, nested, expected) in forms.items():
        write_block(tmp_path / name, changes, **nested)
        assert _block(opened(tmp_path / name)).block.tells_next == expected, name


def test_angles_are_those_of_the_draft(tmp_path: Path) -> None:
    old = {"rope_theta": 1e6}
    new: dict[str, Any] = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    by_kind = {"sliding_attention": new["rope_parameters"], "full_attention": new["rope_parameters"]}
    forms: dict[str, dict[str, Any]] = {"old": old, "new": new, "by kind": new | {"rope_parameters": by_kind}}
    for name, changes in forms.items():
        write_block(tmp_path / name, changes)
        assert _block(opened(tmp_path / name)).config.rope_parameters["rope_theta"] == 1e6


def test_codebooks_are_read_with_and_without_a_suffix_and_no_head_that_nothing_uses(tmp_path: Path) -> None:
    folder = tmp_path / "speculator"
    written = write_block(folder, **_SECOND)
    tensors = load_file(folder / "model.safetensors")
    name = "candidate_selector.successor_codebook"
    tensors[name] = tensors.pop(f"{name}.weight")
    tensors["confidence_head.proj.weight"] = torch.zeros(1, HIDDEN_SIZE)
    save_file(tensors, folder / "model.safetensors")
    found = opened(folder).weights.read(f"{name}.weight")
    assert torch.equal(torch.from_numpy(found), written.get_parameter(f"{name}.weight"))


_WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another target": ({"num_target_layers": 3}, {}, "a number of layers of 3, and the model has 2"),
    "a mask behind the embedding": ({}, {"mask_token_id": VOCAB_SIZE}, "and the embedding has 320 rows"),
    "no mask": ({}, {"mask_token_id": None}, "does not say mask_token_id"),
    "a layer beyond the last": ({}, {"target_layer_ids": [0, 2]}, "which must be different layers"),
    "a layer twice": ({}, {"target_layer_ids": [0, 0]}, "which must be different layers"),
    "no layers": ({}, {"target_layer_ids": []}, "a list of at most"),
    "a block of millions": ({"block_size": 1 << 40}, {}, "a whole number from 2 to 64"),
    "a convolution of millions": ({}, _SECOND | {"conv_kernel_size": 1 << 40}, "a whole number from 1 to 16"),
    "groups that do not fit": ({}, _SECOND | {"conv_group_size": 24}, "a divisor of hidden_size, 64"),
    "a larger codebook": ({}, _SECOND | {"selector_rank": 1 << 16}, "of the shape"),
    "more layers than tensors": ({"num_hidden_layers": 1 << 40}, {}, "correct num_hidden_layers"),
    "a window and none": (_SLIDING | {"use_sliding_window": False}, {}, "says that there is no window"),
    "causal and not": ({"is_causal": False}, {"causal_head": True}, "that it is causal and that it is not"),
    "a key of unknown meaning": ({}, {"turns_twice": True}, "sets 'turns_twice' to True"),
    "another key of unknown meaning": ({"turns_twice": True}, {}, "sets 'turns_twice' to True"),
    "a table that is none": ({"dflash_config": [1]}, {}, "must be an object"),
    "another target's size": ({}, {"target_hidden_size": 128}, "hidden states of 128, and the model has 64"),
    "layers of another kind": ({"model_type": "gemma2"}, {}, "of the type 'gemma2'"),
    "a Markov head that is not read": (_DSPARK | {"markov_head_type": "rnn"}, {}, 'must be "vanilla"'),
    "attention that is not read": ({}, {"attention_mode": "mla"}, 'must be "gqa" or "mha"'),
}
_BY_NAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Laguna's form": ({"architectures": ["DFlashLagunaForCausalLM"], "model_type": "laguna"}, {}),
    "Domino": ({}, {"projector_type": "domino"}),
    "LiLiCorr": ({}, {"projector_type": "lilicorr"}),
    "XPress": (packaged(speculators_model_type="xpress"), {}),
    "DFlare": ({"architectures": ["DFlareDraftModel"]}, {}),
    "EAGLE-4, whose licence forbids": ({"architectures": ["Eagle4DraftModel"]}, {}),
    "layers of Gemma 4": ({"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}, {}),
}


def _changed(folder: Path, changes: dict[str, Any], nested: dict[str, Any]) -> None:
    """Of a good folder, config.json alone."""
    write_block(folder, **({"selector_rank": 8, **_SECOND} if "conv_kernel_size" in nested else {}))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config = config | {"dflash_config": config["dflash_config"] | nested} | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("case", _WRONG)
def test_misfits_are_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    changes, nested, words = _WRONG[case]
    _changed(tmp_path / "speculator", changes, nested)
    with pytest.raises(ExportError) as error:
        opened(tmp_path / "speculator")
    assert words in str(error.value)


def test_a_window_that_no_manifest_holds_is_refused_before_the_target_is_read(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _changed(tmp_path / "speculator", _SLIDING | {"sliding_window": 1 << 40}, {})
    words = refusal_of(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", monkeypatch)
    assert "has an unusable block.window (1099511627776; expected int <= 268435456): give one" in words


@pytest.mark.parametrize("name", _BY_NAME)
def test_relatives_that_are_not_read_are_refused_by_name(name: str, tmp_path: Path) -> None:
    _changed(tmp_path / "speculator", *_BY_NAME[name])
    with pytest.raises(UnsupportedArchitectureError, match=f"holds a speculator of .*{name}.*: give one of DFlash"):
        opened(tmp_path / "speculator")


def test_a_fused_projection_is_lagunas(tmp_path: Path) -> None:
    folder = tmp_path / "speculator"
    write_block(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.0.self_attn.qkv_proj.weight"] = tensors.pop("layers.0.self_attn.q_proj.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ReaderEdgeError, match="Laguna's form"):
        opened(folder)


def test_a_smaller_vocabulary_is_named_in_the_targets(tmp_path: Path) -> None:
    written = write_block(tmp_path / "speculator", packaged(draft_vocab_size=DRAFT_VOCAB_SIZE))
    ids = opened(tmp_path / "speculator").module.target_ids
    assert ids is not None
    assert written.target_ids is not None
    assert torch.equal(ids, written.target_ids)
