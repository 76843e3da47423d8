"""Folders written by transformers 5 compute what transformers 5 computes: its own logits are the truth."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.architectures import SUPPORTED
from reader_edge_export.sources.config_form import class_form
from reader_edge_export.sources.module import chain_logits, load_folder
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.record_transformers5 import TOKEN_IDS, fill, last_logits
from tests.tiny_models import build_tiny_tokenizer

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "transformers5.json").read_text(encoding="utf-8")
)
LIMIT = 2e-5
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Name of a recorded model -> its folder as transformers 5 writes it; in "4" beside it, as version 4 does."""
    root = tmp_path_factory.mktemp("transformers5")

    def build(name: str) -> Path:
        written = root / name
        if not written.exists():
            form = class_form(RECORDED[name]["config"])
            scaling = form.pop("rope_scaling", None)
            config = AutoConfig.for_model(**form)
            if scaling is not None:
                config.rope_scaling = scaling
            model = AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                fill(dict(model.named_parameters()))
            model.save_pretrained(written)
            build_tiny_tokenizer(written)
            (written / "config.json").rename(root / f"{name}-4.json")
            (written / "config.json").write_text(json.dumps(RECORDED[name]["config"]))
        return written

    return build


@pytest.mark.parametrize("name", RECORDED)
def test_a_folder_of_transformers_5_computes_what_transformers_5_computes(name: str, folder: Folder) -> None:
    computed = last_logits(chain_logits(load_folder(folder(name)), TOKEN_IDS))
    assert np.abs(np.array(computed) - RECORDED[name]["logits"]).max() < LIMIT


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_the_same_model_in_the_form_of_transformers_4_computes_the_same(
    model_type: str, folder: Folder, tmp_path: Path
) -> None:
    fifth = folder(model_type)
    fourth = tmp_path / "fourth"
    fourth.mkdir()
    (fourth / "model.safetensors").symlink_to(fifth / "model.safetensors")
    config = json.loads((fifth.parent / f"{model_type}-4.json").read_text())
    assert "rope_parameters" not in config
    (fourth / "config.json").write_text(json.dumps(config))
    assert torch.equal(
        chain_logits(load_folder(fourth), TOKEN_IDS[:9]), chain_logits(load_folder(fifth), TOKEN_IDS[:9])
    )


@pytest.mark.parametrize("name", ["llama-llama3", "gemma3_text"])
def test_a_package_of_a_folder_of_transformers_5_computes_the_same(name: str, folder: Folder, tmp_path: Path) -> None:
    export_model(folder(name), tmp_path / "out", ExportOptions(precision="fp32"))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < LIMIT


def test_every_architecture_was_recorded_with_a_rotary_embedding_that_is_not_its_own() -> None:
    assert set(SUPPORTED) <= set(RECORDED)
    for name, recorded in RECORDED.items():
        if recorded["config"]["model_type"] != "gpt2":
            assert json.dumps(recorded["config"]["rope_parameters"]).count("000.0") >= 1, name
