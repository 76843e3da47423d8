#!/usr/bin/env bash
# gguf 0.19.0 (PyPI), whose Metadata llama.cpp's converter writes to a file's general.sampling.* keys.
#
# 1. generation_config.json's temperature, top_k and top_p are taken over whatever do_sample says: a model that
#    transformers runs greedily becomes a file that recommends to draw tokens.
# 2. Its repetition_penalty is not: the key that is looked up is penalty_repeat, which transformers does not write.
#
# Output seen:
#   do_sample True: temp 0.7 top_k 20 top_p 0.8 penalty_repeat None
#   do_sample False: temp 0.7 top_k 20 top_p 0.8 penalty_repeat None
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0
venv/bin/python - <<'PYTHON' >seen
import json
from pathlib import Path

from gguf.metadata import Metadata

for does_sample in (True, False):
    model = Path(f"model-{does_sample}")
    model.mkdir()
    given = {"do_sample": does_sample, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    (model / "generation_config.json").write_text(json.dumps(given))
    read = Metadata.load(model_path=model)
    names = ("temp", "top_k", "top_p", "penalty_repeat")
    print(f"do_sample {does_sample}:", *(f"{name} {getattr(read, f'sampling_{name}')}" for name in names))
PYTHON
diff seen - <<'SEEN'
do_sample True: temp 0.7 top_k 20 top_p 0.8 penalty_repeat None
do_sample False: temp 0.7 top_k 20 top_p 0.8 penalty_repeat None
SEEN
cat seen
