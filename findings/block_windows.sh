#!/usr/bin/env bash
# dflash 0.1.0, transformers 5.23.0, torch 2.13.0 (PyPI): two implementations of DFlash with the same weights.
#
# 1. Layers without a window agree. With "sliding_attention" and sliding_window 16 in both configs they do not: rows of the
#    block see no later row in dflash, unless the config sets is_causal to false, and all of them in transformers.
# 2. With is_causal false they still differ: a row of dflash sees 16 rows back with itself, one of transformers 17.
#    transformers' 15 is dflash's 16.
# 3. A config whose layer_types name such layers, but without use_sliding_window, has no window in dflash: they are causal
#    and see everything.
#
# Output seen:
#   full: equal
#   windows of 16: differ
#   windows of 16, is_causal false: differ
#   windows of 16 and 15, is_causal false: equal
#   without use_sliding_window: window None, causal True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet dflash==0.1.0 transformers==5.23.0 torch==2.13.0
venv/bin/python - 2>notes <<'PYTHON' >seen || { cat notes; exit 1; }
import torch
from dflash.model import DFlashDraftModel
from transformers import Qwen3Config
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

SIZES = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
    max_position_embeddings=512, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
SLIDING = ["sliding_attention", "sliding_attention"]


def draft(layer_types, **keys):
    config = Qwen3Config(vocab_size=100, layer_types=layer_types, **SIZES, **keys)
    config.num_target_layers, config.dflash_config = 8, {"block_size": 6, "mask_token_id": 99, "target_layer_ids": [1, 3]}
    return DFlashDraftModel(config).eval().float()


def compare(name, layer_types, window, **keys):
    torch.manual_seed(0)
    own = dict(use_sliding_window=True, sliding_window=16) if layer_types == SLIDING else {}
    one = draft(layer_types, **own, **keys)
    config = MuseGlimmerAssistantConfig(
        **SIZES, sliding_window=window, layer_types=layer_types, block_size=6, mask_token_id=99, target_layer_ids=[1, 3]
    )
    config._attn_implementation = "eager"
    other = MuseGlimmerAssistantModel(config).eval().float()
    names = {"hidden_norm.weight": "encoder.output_norm_enc.weight", "fc.weight": "encoder.fc.weight"}
    other.load_state_dict({names.get(key, key): tensor for key, tensor in one.state_dict().items()})
    states, rows, positions = torch.randn(1, 40, 128), torch.randn(1, 6, 64), torch.arange(46)[None]
    cache = DFlashCache(config=config)
    cache.activate_past_recording()
    cache.set_previous_accepted_tokens(40)
    with torch.no_grad():
        first = one(position_ids=positions, noise_embedding=rows, target_hidden=states)
        second = other(
            noise_embeds=rows, context_hidden_states=states, position_ids=positions, past_key_values=cache
        ).last_hidden_state
    print(f"{name}: {'equal' if torch.allclose(first, second, atol=1e-5) else 'differ'}")


compare("full", ["full_attention"] * 2, 16)
compare("windows of 16", SLIDING, 16)
compare("windows of 16, is_causal false", SLIDING, 16, is_causal=False)
compare("windows of 16 and 15, is_causal false", SLIDING, 15, is_causal=False)
attention = draft(SLIDING, sliding_window=16).layers[0].self_attn
print(f"without use_sliding_window: window {attention.sliding_window}, causal {attention.is_causal}")
PYTHON
diff seen - <<'SEEN'
full: equal
windows of 16: differ
windows of 16, is_causal false: differ
windows of 16 and 15, is_causal false: equal
without use_sliding_window: window None, causal True
SEEN
cat seen
