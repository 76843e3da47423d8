#!/usr/bin/env bash
# mlx-lm 0.32.2, mlx 0.32.4 (PyPI), on a CPU: a Falcon-H1 whose keys are multiplied by a factor answers as one whose are not.
#
# Falcon-H1 multiplies what its matrices make by factors of its config; mlx-lm multiplies the matrices themselves when it
# reads a folder. For keys it looks for matrices called key_proj, which no Falcon-H1 has: theirs are called k_proj. So
# `key_multiplier` is left out, without a word, and what its `convert` writes does not have it either; transformers
# multiplies keys by it. Folders of Falcon-H1 in MLX's format are no Falcon-H1, whatever is undone of them.
#
# Output seen:
#   mlp_multipliers [0.5, 1]: other logits
#   key_multiplier 0.5: the same logits
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet "mlx[cpu]==0.32.4" mlx-lm==0.32.2
venv/bin/python - 2>notes <<'PYTHON' >seen || { cat notes; exit 1; }
import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.falcon_h1 import Model, ModelArgs
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)
mx.random.seed(0)
FACTORS = ("attention_in", "attention_out", "embedding", "key", "lm_head", "ssm_in", "ssm_out")
CONFIG = {
    **{"model_type": "falcon_h1", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "tie_word_embeddings": False},
    **{"mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_n_groups": 1},
    **{f"{factor}_multiplier": 1.0 for factor in FACTORS},
    **{"mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0] * 5},
}
shapes = {name: weight.shape for name, weight in tree_flatten(Model(ModelArgs.from_dict(CONFIG)).parameters())}
weights = {name: mx.random.normal(shape) * 0.3 for name, shape in shapes.items() if "_mup" not in name}
weights = {name: weight.moveaxis(2, 1) if "conv1d.weight" in name else weight for name, weight in weights.items()}
mx.save_safetensors("model.safetensors", weights, {"format": "pt"})  # as the maker has it: channels first


def logits(**changes: object) -> mx.array:
    Path("config.json").write_text(json.dumps(CONFIG | changes))
    model, _ = load_model(Path("."))
    return model(mx.arange(2, 34)[None])


plain = logits()
for key, value in (("mlp_multipliers", [0.5, 1]), ("key_multiplier", 0.5)):
    is_same = mx.array_equal(plain, logits(**{key: value})).item()
    print(f"{key} {value}: {'the same' if is_same else 'other'} logits")
PYTHON
diff seen - <<'SEEN'
mlp_multipliers [0.5, 1]: other logits
key_multiplier 0.5: the same logits
SEEN
cat seen
