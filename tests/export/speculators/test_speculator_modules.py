"""Networks of speculators against what the `speculators` package computed with the same weights."""

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from reader_edge_export.speculators.eagle3_module import Eagle3Config, Eagle3Module
from reader_edge_export.speculators.mtp_module import MtpModule
from reader_edge_export.speculators.speculator_module import DenseAttention, SpeculatorModule
from tests.export.record_transformers5 import NUM_COLUMNS, NUM_ROWS, fill
from tests.export.speculators.record_speculators import (
    DRAFT_VOCAB_SIZE,
    EAGLE3,
    FILE,
    MTP,
    NUM_NODES,
    NUM_STATES,
    NUM_STEPS,
    inputs,
)

_RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_computes_what_the_speculators_package_does(name: str) -> None:
    model_type, layer, switches = EAGLE3[name]
    config = AutoConfig.for_model(model_type, **layer)
    size = int(layer["hidden_size"])
    module = Eagle3Module(Eagle3Config(config, DRAFT_VOCAB_SIZE, NUM_STATES, size, **switches))
    given, attention = inputs(NUM_STATES * size), DenseAttention()
    attention.seen = torch.ones(NUM_NODES, NUM_NODES, dtype=torch.bool).tril()
    own = torch.eye(NUM_NODES, dtype=torch.bool)
    found: list[dict[str, torch.Tensor]] = []
    with torch.no_grad():
        fill(dict(module.named_parameters()))
        states = module.joined(given["states"][:, :NUM_NODES])
        for step in range(NUM_STEPS):  # each node goes on alone, behind those that the target was heard on
            ids = given["input_ids"][:, step : step + NUM_NODES]
            positions = torch.arange(1 + step, 1 + step + NUM_NODES)[None]
            states = _add_step(module, ids, positions, states, attention, found)
            attention.seen = torch.cat([attention.seen, own], dim=1)
    _compare(found, _RECORDED[f"eagle3, {name}"])


@pytest.mark.parametrize("name", MTP)
def test_mtp_computes_what_the_speculators_package_does(name: str) -> None:
    module = MtpModule(AutoConfig.for_model(**MTP[name]))
    given = inputs(module.config.hidden_size)
    found: list[dict[str, torch.Tensor]] = []
    num_nodes = len(given["input_ids"][0]) - NUM_STEPS - 1
    with torch.no_grad():
        fill(dict(module.named_parameters()))
        states = module.joined(given["states"][:, :num_nodes])
        for step in range(NUM_STEPS):
            ids = given["input_ids"][:, step + 1 : step + 1 + num_nodes]
            attention = DenseAttention.causal(num_nodes)
            states = _add_step(module, ids, torch.arange(num_nodes)[None], states, attention, found)
    _compare(found, _RECORDED[f"mtp, {name}"])


def _add_step(
    module: SpeculatorModule,
    ids: torch.Tensor,
    positions: torch.Tensor,
    states: torch.Tensor,
    attention: DenseAttention,
    found: list[dict[str, torch.Tensor]],
) -> torch.Tensor:
    heard = module.step(ids, positions, states, attention)
    found.append({"logits": module.lm_head(heard.read)[0], "next_states": heard.next_states[0]})
    return heard.next_states


def _compare(found: list[dict[str, torch.Tensor]], recorded: list[dict[str, Any]]) -> None:
    assert len(found) == len(recorded) == NUM_STEPS
    for one, other in zip(found, recorded, strict=True):
        for name, values in one.items():
            expected = torch.tensor(other[name])
            largest = float(expected.abs().max())
            torch.testing.assert_close(values[-NUM_ROWS:, :NUM_COLUMNS], expected, atol=1e-5 * largest, rtol=0)
