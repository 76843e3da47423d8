#!/usr/bin/env bash
# tokenizers 0.23.3 (PyPI).
#
# 1. The ids that tokenizer.json gives its added tokens are not read: a token that the vocabulary lacks is numbered by how
#    many tokens there are. Where the vocabulary has a hole, even one that the added token's own id would fill, it takes
#    the id of a word, which then decodes to it. Nothing is raised, and Python code sees no warning.
# 2. Saved again, the file has the new id, so that the old one is lost.
#
# Output seen:
#   given: [X] 2
#   read: [X] 3 c 3
#   decoded: a[X]
#   saved: [X] 3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tokenizers==0.23.3
venv/bin/python - <<'PYTHON' >seen
import json

from tokenizers import Tokenizer, models

fields = json.loads(Tokenizer(models.BPE({"a": 0, "b": 1, "c": 3}, [], fuse_unk=False)).to_str())
flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
fields["added_tokens"] = [{"id": 2, "content": "[X]", **flags}]
print("given:", *(f"{token['content']} {token['id']}" for token in fields["added_tokens"]))
read = Tokenizer.from_str(json.dumps(fields))
print("read:", *(f"{token} {read.token_to_id(token)}" for token in ("[X]", "c")))
print("decoded:", read.decode(read.encode("ac").ids).replace(" ", ""))
print("saved:", *(f"{token['content']} {token['id']}" for token in json.loads(read.to_str())["added_tokens"]))
PYTHON
diff seen - <<'SEEN'
given: [X] 2
read: [X] 3 c 3
decoded: a[X]
saved: [X] 3
SEEN
cat seen
