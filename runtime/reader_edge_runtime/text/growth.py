"""How much longer the steps of a tokenizer can make a text: three `Replace` steps from outside can fill any memory."""

import base64
import json
from collections.abc import Iterator
from typing import Any

# Characters that one character can become. Kinds not named here add a fixed number to a word, or none.
_MOST = {
    "BPEDecoder": 2,  # an empty suffix is found between any two characters
    "BertNormalizer": 12,  # decomposed, with spaces around it
    "ByteLevel": 5,  # one a byte, and a space before
    "CTC": 2,  # as BPEDecoder
    "Lowercase": 2,
    "Metaspace": 2,
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
}


def growth(*parts: Any) -> tuple[int, float]:
    """How many steps parts of a `tokenizers.Tokenizer` take together, and by how much they multiply a text at most.

    parts: each a normalizer, pre-tokenizer, post-processor or decoder, or None.
    """
    steps = [step for part in parts if part is not None for step in _steps(json.loads(part.__getstate__()))]
    product = 1.0  # which overflows to infinity
    for step in steps:
        product *= _growth_of(step)
    return len(steps), product


def _steps(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if part["type"] != "Sequence":
        yield part
        return
    for steps in part.values():
        if isinstance(steps, list):
            for step in steps:
                yield from _steps(step)


def _growth_of(step: dict[str, Any]) -> int:
    match step["type"]:
        case "Prepend":
            return 1 + len(step["prepend"])
        case "Replace":
            replaced = len(step["pattern"].get("String", ""))  # a regular expression can match the empty text
            return -(-len(step["content"]) // replaced) or 1 if replaced else 1 + len(step["content"])
        case "Precompiled":  # the size of a trie, the trie, and what it points to (SentencePiece, normalizer.cc)
            blob = base64.b64decode(step["precompiled_charsmap"])
            return max(map(len, blob[4 + int.from_bytes(blob[:4], "little") :].split(b"\0"))) or 1
        case "TemplateProcessing":
            ids = [len(token["ids"]) for token in step["special_tokens"].values()]
            return len(step["single"]) * max(ids, default=1) or 1
        case kind:
            return _MOST.get(kind, 1)
