"""Folders written by transformers 5 compute what transformers 5 computes: its own logits are the truth."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.architectures import SUPPORTED
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.record_transformers5 import RECORDED, TOKEN_IDS, last_logits
from tests.export.source_models import chain_logits, load_folder

LIMIT = 2e-5
Folder = Callable[[str], Path]


@pytest.mark.parametrize("name", RECORDED)
def test_a_folder_of_transformers_5_computes_what_transformers_5_computes(name: str, folder_of_5: Folder) -> None:
    computed = last_logits(chain_logits(load_folder(folder_of_5(name)), TOKEN_IDS))
    assert np.abs(np.array(computed) - RECORDED[name]["logits"]).max() < LIMIT


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_the_same_model_in_the_form_of_transformers_4_computes_the_same(
    model_type: str, folder_of_5: Folder, tmp_path: Path
) -> None:
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
def test_a_package_of_a_folder_of_transformers_5_computes_the_same(
    name: str, folder_of_5: Folder, tmp_path: Path
) -> None:
    export_model(folder_of_5(name), tmp_path / "out", ExportOptions(precision="fp32"))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < LIMIT


def test_every_architecture_was_recorded_with_a_rotary_embedding_that_is_not_its_own() -> None:
    assert set(SUPPORTED) <= set(RECORDED)
    for name, recorded in RECORDED.items():
        if recorded["config"]["model_type"] != "gpt2":
            assert json.dumps(recorded["config"]["rope_parameters"]).count("000.0") >= 1, name
