"""Networks that draft a block compute what their makers' do, with a cache of the context as without."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from reader_edge_export.speculators.block_networks import BlockConfig, BlockModule, DenseBlockAttention
from tests.export.record_transformers5 import fill

NUM_STATES, BLOCK_SIZE, NUM_CONTEXT = 2, 6, 40
LAYER: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 24},
    **{"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "vocab_size": 100},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}


def block_module(windows: tuple[int, ...] = (0, 0, 0), is_causal: bool = False, **switches: Any) -> BlockModule:
    """With random weights."""
    given = (100, NUM_STATES, 64, BLOCK_SIZE, 99, (is_causal,) * 3, windows)
    module = BlockModule(BlockConfig(AutoConfig.for_model("qwen3", **LAYER), *given, **switches))
    with torch.no_grad():
        fill(dict(module.named_parameters()))
    return module


def drafted(module: BlockModule, cuts: tuple[int, ...] = ()) -> torch.Tensor:
    """What a block's rows have behind NUM_CONTEXT tokens, which come in passes of their own up to each of the cuts."""
    states, ids = _states(), torch.tensor([[7, *[99] * (BLOCK_SIZE - 1)]])
    attention, start = DenseBlockAttention(0), 0
    for stop in (*cuts, NUM_CONTEXT):
        attention.num_context = stop - start
        positions = torch.arange(start, stop + BLOCK_SIZE)[None]
        with torch.no_grad():
            found = module.block(ids, positions, states[:, start:stop], attention)
        start = stop
    return found


def _states() -> torch.Tensor:
    states = {"states": torch.empty(1, NUM_CONTEXT, NUM_STATES * 64)}
    fill(states)
    return states["states"]


@pytest.mark.parametrize("window", [0, 17], ids=["full", "windows"])
def test_dflash_computes_what_transformers_does(window: int) -> None:
    module = block_module((window, window, 0))
    kinds = ["sliding_attention" if window else "full_attention"] * 2 + ["full_attention"]
    # A window reaches one token further back and ahead there than what it is called.
    own: dict[str, Any] = {"layer_types": kinds, "sliding_window": max(window - 1, 1), "block_size": BLOCK_SIZE}
    config = MuseGlimmerAssistantConfig(**LAYER, **own, mask_token_id=99, target_layer_ids=[1, 3])
    config._attn_implementation = "eager"
    model = MuseGlimmerAssistantModel(config).eval()
    names = {"hidden_norm.": "encoder.output_norm_enc.", "fc.": "encoder.fc."}
    tensors = {name: each for name, each in module.state_dict().items() if not name.startswith(("embed", "lm_head"))}
    for own_name, name in names.items():
        tensors = {each.replace(own_name, name): tensor for each, tensor in tensors.items()}
    model.load_state_dict(tensors)
    cache = DFlashCache(config=config)
    cache.activate_past_recording()
    cache.set_previous_accepted_tokens(NUM_CONTEXT)
    rows = module.embed_tokens(torch.tensor([[7, *[99] * (BLOCK_SIZE - 1)]]))
    positions = torch.arange(NUM_CONTEXT + BLOCK_SIZE)[None]
    with torch.no_grad():
        given = {"noise_embeds": rows, "context_hidden_states": _states(), "position_ids": positions}
        expected = model(**given, past_key_values=cache).last_hidden_state
    largest = float(expected.abs().max())
    torch.testing.assert_close(drafted(module), expected, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_context_in_several_passes_is_the_whole_one(is_causal: bool, window: int) -> None:
    module = block_module((window, 0, window), is_causal)
    torch.testing.assert_close(drafted(module, (1, 30, 30)), drafted(module), atol=1e-5, rtol=1e-5)


def test_causal_rows_do_not_change_with_later_ones() -> None:
    for is_causal in (True, False):
        module = block_module(is_causal=is_causal)
        one = drafted(module)
        with torch.no_grad():
            module.embed_tokens.weight[99] *= 2
        assert torch.equal(one[:, 0], drafted(module)[:, 0]) == is_causal


def test_scales_and_caps_of_the_config_count() -> None:
    plain, scaled = block_module(), block_module(embedding_scale=3.0, logit_scale=0.5, softcap=2.0)
    read = drafted(plain)
    assert not torch.allclose(read, drafted(scaled), atol=1e-2)
    expected = 2.0 * torch.tanh(plain.logits(read) * 0.25)
    torch.testing.assert_close(scaled.logits(read), expected)
