#!/usr/bin/env bash
# llguidance 1.9.1: what it lets an answer be is wider than the JSON schema that it was given, without a word.
#
# Seen on 28 November 2026, on Linux with Python 3.11; each line below is one text and whether the grammar of a schema
# takes it whole:
#   {"enum": [1234567890123456789]}                           1234567890123456768   taken, and the listed number is not
#   {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5} 0                     taken
#   {"type": "string", "format": "date"}                      "2023-02-29"          taken
#   {"properties": {"a": {"type": "integer"}}, ...}           {"\u0061":"x"}        taken: a key that is listed, misspelled
#   {"type": "object"}                                        {"a":1,"a":2}         taken
# Exits with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.9.1
"$folder/venv/bin/python" - <<'PROGRAM'
import json
import sys

from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper


class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([byte]) for byte in range(256)] + [b""]

    def __call__(self, text):
        return list(text.encode())


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=[256])


def takes(schema, text):
    source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    matcher = LLMatcher(tokenizer, source)
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


CASES = [
    ({"enum": [1234567890123456789]}, "1234567890123456768", True),
    ({"enum": [1234567890123456789]}, "1234567890123456789", False),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0", True),
    ({"type": "string", "format": "date"}, '"2023-02-29"', True),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"\\u0061":"x"}', True),
    ({"type": "object"}, '{"a":1,"a":2}', True),
]
changed = [case for case in CASES if takes(*case[:2]) != case[2]]
for schema, text, expected in CASES:
    print(json.dumps(schema), text, "taken" if takes(schema, text) else "not taken")
sys.exit(1 if changed else 0)
PROGRAM
