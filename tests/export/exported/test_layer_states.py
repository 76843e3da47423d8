"""Packages for the CPU report the states that trained speculators read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

TOKENS = [5, 9, 2, 40, 17, 3]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt2", "qwen3_5_text", "gemma4_text"])
def test_states_are_those_between_the_sources_layers(
    exported: Callable[..., Path], tiny_model: Callable[[str], Path], architecture: str
) -> None:
    package = ModelPackage.open(exported(architecture, "fp32", "exact", is_checked=False))
    manifest, target = package.manifest, HostTarget.open(package)
    num_layers = manifest.num_layers
    assert manifest.state_ids == tuple(sorted({2, num_layers // 2, max(num_layers - 3, 0), num_layers + 1}))
    wanted = Pass(0, [DraftTree.chain(TOKENS)], [[len(TOKENS) - 1]], wants_layer_states=True, num_kept=len(TOKENS))
    said = target.forward(target.new_cache(1, 16), wanted)
    assert said.layer_states is not None
    module = AutoModelForCausalLM.from_pretrained(tiny_model(architecture))
    with torch.no_grad():
        states = module(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    for number, found in zip(manifest.state_ids, said.layer_states[:, 0], strict=True):
        if number != num_layers:  # transformers tells the last layer's only behind the norm
            np.testing.assert_allclose(found, states[min(number, num_layers)][0].numpy(), atol=5e-5)


def test_packages_for_devices_report_none(exported: Callable[..., Path]) -> None:
    package = ModelPackage.open(exported("llama", "fp32", "fast", is_checked=False))
    assert package.manifest.state_ids == ()


def test_states_that_no_graph_reports_are_refused(demo_folder: Path) -> None:
    target = HostTarget.open(ModelPackage.open(demo_folder))
    with pytest.raises(ProviderError, match="no states of its layers"):
        target.forward(target.new_cache(1, 16), Pass(0, [DraftTree.chain([1])], [[0]], wants_layer_states=True))
