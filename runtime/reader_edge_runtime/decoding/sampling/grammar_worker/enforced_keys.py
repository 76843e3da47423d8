"""Keys that `patternProperties` of a closed object name, as llguidance can follow them: each of a few can come once."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

Schema = dict[str, Any]
Note = Callable[[str], None]

KEY_ESCAPES = 'nrbtf\\"'  # no other letter of a key is written as an escape, so each key has one spelling
_FEW = 64  # keys that an answer could use up
_MAX_STEPS = 500


def enforce_few_keys(schema: Schema, note: Note) -> None:
    """Patterns of a closed object's keys, in place: a comma behind its last key would lead nowhere."""
    patterns: Schema = schema["patternProperties"]
    listed = schema.get("properties")
    keys: list[tuple[str, Any]] = []
    for pattern, part in patterns.items():
        found = few_keys(pattern)
        if found is None:
            return
        keys += [(key, part) for key in found]
    if not isinstance(listed, dict) or not listed:
        most = schema.get("maxProperties")
        schema["maxProperties"] = min(most, len(keys)) if isinstance(most, int) else len(keys)
        return
    for key, part in keys:
        if listed.get(key, {}) != {}:
            note(f"'patternProperties' for {key!r:.40}, which is listed")
        else:
            listed[key] = part
    del schema["patternProperties"]


def few_keys(pattern: str) -> list[str] | None:
    """The keys that a pattern names; None where they are more than few. pattern: of Rust's syntax."""
    from llguidance import LLMatcher

    schema = {"type": "string", "pattern": pattern, "x-guidance": {"json_allowed_escapes": KEY_ESCAPES}}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    left = [(LLMatcher(_byte_tokenizer(), grammar, log_level=0), b"")]
    found: list[str] = []
    for _ in range(_MAX_STEPS):
        if not left:
            return found
        matcher, text = left.pop()
        if matcher.is_error():
            return None
        if matcher.is_stopped():
            found.append(json.loads(text))
            continue
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        following = [byte for byte in range(256) if mask >> byte & 1]
        if len(found) + len(left) + len(following) > _FEW:  # each leads to a key
            return None
        for byte in reversed(following):
            further = matcher.deep_copy()
            further.consume_token(byte)
            left.append((further, text + bytes([byte])))
    return None


@cache
def _byte_tokenizer() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
