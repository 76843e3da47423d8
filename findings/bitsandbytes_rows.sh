#!/usr/bin/env bash
# bitsandbytes 0.50.2, torch 2.13.0 (PyPI), on a CPU with AVX-512: matrices whose rows are no multiple of the block.
#
# Blocks go over the flattened matrix. The CPU's kernel counts a row's whole blocks and begins each row with a new one, so
# that it takes scales of other values where a row ends within a block: all rows but the first are wrong, by as much as
# the rounding itself or more, without a word. The library's own definition in PyTorch is right, and so is the kernel
# without AVX-512. Models of 576 inputs (SmolLM2-135M) are read wrongly in blocks of 128, and rightly in blocks of 64.
# What compares with the library on a CPU must choose rows of whole blocks.
#
# Output seen:
#   576 inputs in blocks of 64: rows that differ 0
#   576 inputs in blocks of 128: rows that differ 575
#   96 inputs in blocks of 64: rows that differ 575
set -euo pipefail
grep -q avx512f /proc/cpuinfo || { echo "this CPU has no AVX-512"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet bitsandbytes==0.50.2 torch==2.13.0
venv/bin/python - 2>notes <<'PYTHON' >seen || { cat notes; exit 1; }
import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.backends.utils import _get_4bit_code

torch.manual_seed(0)
for num_inputs, size in ((576, 64), (576, 128), (96, 64)):
    packed, state = bnb.quantize_4bit(torch.randn(576, num_inputs), blocksize=size, quant_type="nf4")
    code = _get_4bit_code("nf4", packed.device)
    expected = _dequantize_4bit_compute(packed.reshape(-1), state.absmax, code, size, state.shape, torch.float32)
    differ = (bnb.dequantize_4bit(packed, state) != expected).any(1).sum()
    print(f"{num_inputs} inputs in blocks of {size}: rows that differ {differ}")
PYTHON
diff seen - <<'SEEN'
576 inputs in blocks of 64: rows that differ 0
576 inputs in blocks of 128: rows that differ 575
96 inputs in blocks of 64: rows that differ 575
SEEN
cat seen
