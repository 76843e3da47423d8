"""Packages for the CPU report what their logit head reads."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

TOKENS = [5, 9, 2, 40, 17, 3]


def states_of(package: Path, trees: list[list[int]]) -> Float32Array:
    """The states after a chain's tokens, from passes over parts of it."""
    target = HostTarget.open(ModelPackage.open(package))
    cache, states = target.new_cache(1, 16), []
    for tokens in trees:
        rows = list(range(len(tokens)))
        said = target.forward(cache, Pass(0, [DraftTree.chain(tokens)], [rows], wants_hidden_states=True))
        assert said.hidden_states is not None
        states.append(said.hidden_states[0].copy())
        cache.commit(0, rows)
    return np.concatenate(states)


def test_hidden_states_are_the_sources_last_ones(
    exported: Callable[..., Path], tiny_model: Callable[[str], Path]
) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    with torch.no_grad():
        expected = module.model(torch.tensor([TOKENS])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(
        states_of(exported("llama", "fp32", "exact", is_checked=False), [TOKENS]), expected, atol=2e-5
    )


def test_hidden_states_have_the_same_bits_at_every_width(exported: Callable[..., Path]) -> None:
    package = exported("llama", "int8", "exact", is_checked=False)
    together, alone = states_of(package, [TOKENS]), states_of(package, [[token] for token in TOKENS])
    assert (together == alone).all()
