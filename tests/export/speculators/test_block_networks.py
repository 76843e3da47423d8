"""Networks that draft a block compute what their makers' do, with a cache of the context as without."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reader_edge_export.sources.blank_model import built_config
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.speculators.block_networks import BlockModule
from reader_edge_export.speculators.formats.block_folders import block_config, block_source, block_state_ids
from reader_edge_export.speculators.text_attention import DenseBlockAttention
from tests.export.record_transformers5 import NUM_COLUMNS, NUM_ROWS, fill
from tests.export.speculators.record_blocks import CASES, FILE, NUM_CONTEXT, NUM_TOKENS, STATE_SIZE, inputs

_RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


def block_module(name: str, **changes: Any) -> BlockModule:
    """Of a recorded config.json, with the recorded weights. changes: of its keys."""
    files = block_source(Path("speculator"), CASES[name] | changes, {})
    config = built_config(hf_config(files.layer), "speculator")
    num_states = len(block_state_ids(files, config.num_hidden_layers, 8))
    module = BlockModule(block_config(files, config, NUM_TOKENS, num_states, STATE_SIZE))
    with torch.no_grad():
        fill(dict(module.named_parameters()))
    return module


def drafted(module: BlockModule, cuts: tuple[int, ...] = ()) -> torch.Tensor:
    """What a block's rows have behind NUM_CONTEXT tokens, which come in passes of their own up to each of the cuts."""
    given = inputs(module.block.size, module.block_config.num_states)
    attention, start = DenseBlockAttention(), 0
    for stop in (*cuts, NUM_CONTEXT):
        attention.num_context = stop - start
        positions = given["position_ids"][:, start : stop + module.block.size]
        with torch.no_grad():
            states = module.joined(given["states"][:, start:stop])
            found = module.step(given["input_ids"], positions, states, attention)
        start = stop
    return found.read


def _compare(found: torch.Tensor, recorded: list[list[float]]) -> None:
    expected = torch.tensor(recorded)
    atol = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(found[0, -NUM_ROWS:, :NUM_COLUMNS], expected, atol=atol, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_block_is_what_its_makers_code_computes(name: str) -> None:
    module, recorded = block_module(name), _RECORDED[name]
    read = drafted(module)
    _compare(read, recorded["read"])
    _compare(module.logits(read), recorded["logits"])
    chosen, before = [], torch.tensor([7])
    head = module.candidate_selector or module.markov_head
    if head is None:
        return
    for row in range(0 if module.block.tells_next else 1, module.block.size):
        logits, ids = module.logits(read)[:, row].topk(NUM_TOKENS if module.candidate_selector is None else 4)
        left, right = head.factors(before[:, None, None], read[:, row : row + 1], ids[:, None], ids[:, None])
        before = ids.gather(1, (logits + (left @ right.transpose(2, 3))[:, 0, 0]).argmax(1)[:, None])[:, 0]
        chosen.append(before.item())
    if "chosen" in recorded:
        assert chosen == recorded["chosen"]


@pytest.mark.parametrize("name", CASES)
def test_a_context_in_several_passes_is_the_whole_one(name: str) -> None:
    module = block_module(name)
    torch.testing.assert_close(drafted(module, (1, 30, 30)), drafted(module), atol=1e-5, rtol=1e-5)


def test_jetspecs_flag_makes_a_block_causal() -> None:
    nested = CASES["dflash, causal"]["dflash_config"] | {"causal_head": True}
    module = block_module("dflash, causal", is_causal=None, dflash_config=nested)
    _compare(drafted(module), _RECORDED["dflash, causal"]["read"])


def test_a_block_cut_short_has_other_rows_unless_it_is_causal() -> None:
    for is_causal in (True, False):
        module = block_module("dflash, causal", is_causal=is_causal)
        whole, given = drafted(module), inputs(2, module.block_config.num_states)
        with torch.no_grad():
            states, attention = module.joined(given["states"]), DenseBlockAttention(NUM_CONTEXT)
            short = module.step(given["input_ids"], given["position_ids"], states, attention).read
        assert torch.allclose(short, whole[:, :2], atol=1e-5) == is_causal
