#!/usr/bin/env bash
# gguf 0.19.0 (PyPI), numpy 2.4.6.
#
# 1. GGUFWriter.add_array drops a key whose list is empty, without an error, though the format has empty arrays and other
#    writers write them. A test that writes such a file with the library tests a file without the key.
# 2. gguf-convert-endian swaps F32, F16, BF16, Q8_0 and Q4_0, and ends with a ValueError at Q4_1, Q5_0 and Q5_1, which
#    the same package writes in big-endian files: these cannot be turned back by it.
#
# Output seen:
#   keys: llama.one
#   swapped: BF16 F16 F32 Q4_0 Q8_0
#   refused: Q4_1 Q5_0 Q5_1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0 numpy==2.4.6
venv/bin/python - <<'PYTHON' >seen
import subprocess

import gguf
import numpy as np

writer = gguf.GGUFWriter("arrays.gguf", "llama")
writer.add_array("llama.empty", [])
writer.add_array("llama.one", [1])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
print("keys:", *(key for key in gguf.GGUFReader("arrays.gguf").fields if key.startswith("llama.")))

seen = {"swapped": [], "refused": []}
for name in ("BF16", "F16", "F32", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
    kind = gguf.GGMLQuantizationType[name]
    writer = gguf.GGUFWriter("big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("t", gguf.quantize(np.ones((2, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    command = ["venv/bin/gguf-convert-endian", "big.gguf", "little"]
    done = subprocess.run(command, input="YES\n", capture_output=True, text=True)
    seen["refused" if f"Cannot handle type {name}" in done.stderr else "swapped"].append(name)
for outcome, names in seen.items():
    print(f"{outcome}:", *names)
PYTHON
cat seen
diff seen - <<'SEEN'
keys: llama.one
swapped: BF16 F16 F32 Q4_0 Q8_0
refused: Q4_1 Q5_0 Q5_1
SEEN
