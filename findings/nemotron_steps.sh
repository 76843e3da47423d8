#!/usr/bin/env bash
# transformers 5.23.0, torch 2.13.0 (PyPI): a Nemotron-H with short steps says one thing of a text, and another of the
# same text token by token.
#
# 1. The module bounds steps of its recurrence by time_step_min, by which first weights are drawn (0.001), and not by
#    time_step_limit, which the maker's code reads (0 to infinity in published configs).
# 2. It does so where several tokens are scored at once, and not where one is scored behind a cache.
# 3. With a time_step_min of almost nothing both ways agree.
#
# Output seen:
#   time_step_min 0.001: differ
#   time_step_min 1e-20: equal
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.23.0 torch==2.13.0
venv/bin/python - 2>notes <<'PYTHON' >seen || { cat notes; exit 1; }
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

TEXT = torch.arange(2, 42)[None]
for least in (1e-3, 1e-20):
    torch.manual_seed(0)
    config = NemotronHConfig(
        vocab_size=64, hidden_size=32, layers_block_type=["linear_attention", "full_attention"], mamba_num_heads=4,
        mamba_head_dim=16, n_groups=1, ssm_state_size=16, time_step_min=least, time_step_limit=(0.0, float("inf")),
        initializer_range=0.2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    )
    model = NemotronHForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers[:1]:
            layer.mixer.dt_bias.fill_(-9.0)  # steps of about 0.0001
        at_once = model(TEXT).logits[0, -1]
        cache = None
        for token in TEXT[0]:
            output = model(token.view(1, 1), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
    one_by_one = output.logits[0, -1]
    print(f"time_step_min {least}: {'equal' if torch.allclose(at_once, one_by_one, atol=1e-5) else 'differ'}")
PYTHON
diff seen - <<'SEEN'
time_step_min 0.001: differ
time_step_min 1e-20: equal
SEEN
cat seen
