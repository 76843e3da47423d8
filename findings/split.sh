#!/usr/bin/env bash
# gguf 0.19.0 (PyPI), numpy 2.4.6.
#
# 1. The package knows the size of Q1_0's blocks, and cannot dequantise them: that a type is in GGML_QUANT_SIZES does not
#    say that its weights can be read.
# 2. Where GGUFWriter splits a model, all but the first part lack general.architecture: a reader that opens one by itself
#    cannot tell whose tensors it holds. split.no counts from 0, names of files from 1, and split.tensors.count is of all
#    parts together.
#
# Output seen:
#   Q1_0: 128 weights in 18 bytes, NotImplementedError
#   m-00001-of-00002.gguf: architecture llama, split.no 0, split.tensors.count 3, tensors 2
#   m-00002-of-00002.gguf: architecture None, split.no 1, split.tensors.count 3, tensors 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0 numpy==2.4.6
venv/bin/python - <<'PYTHON' >seen
from pathlib import Path

import gguf
import numpy as np

kind = gguf.GGMLQuantizationType.Q1_0
weights, num_bytes = gguf.GGML_QUANT_SIZES[kind]
try:
    outcome = gguf.dequantize(np.zeros((1, num_bytes), np.uint8), kind).shape
except NotImplementedError as error:
    outcome = type(error).__name__
print(f"Q1_0: {weights} weights in {num_bytes} bytes, {outcome}")

writer = gguf.GGUFWriter("m.gguf", "llama", split_max_tensors=2)
for name in "abc":
    writer.add_tensor(name, np.ones((2, 32), np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
for path in sorted(Path().glob("m-*.gguf")):
    file = gguf.GGUFReader(path)
    values = {key: field.contents() for key, field in file.fields.items()}
    keys = ", ".join(f"{key} {values[key]}" for key in ("split.no", "split.tensors.count"))
    print(f"{path}: architecture {values.get('general.architecture')}, {keys}, tensors {len(file.tensors)}")
PYTHON
cat seen
diff seen - <<'SEEN'
Q1_0: 128 weights in 18 bytes, NotImplementedError
m-00001-of-00002.gguf: architecture llama, split.no 0, split.tensors.count 3, tensors 2
m-00002-of-00002.gguf: architecture None, split.no 1, split.tensors.count 3, tensors 1
SEEN
