"""Grammars followed in this process, a byte a token, without a model."""

import json
import random
from functools import cache
from typing import Any

from reader_edge_runtime.decoding.choosing.grammar_worker import ADVANCE, CHECK, MASK
from reader_edge_runtime.decoding.choosing.grammar_worker.following import Followed
from reader_edge_runtime.decoding.choosing.grammar_worker.grammar_source import GrammarSource
from reader_edge_runtime.decoding.choosing.grammar_worker.unique_keys import KeyTokens

END = 256
_LIKELY = b'"}],'  # that answers end some time
_MAX_BYTES = 300


class _Bytes:
    """A tokenizer whose tokens are bytes, as llguidance wants one."""

    eos_token_id, bos_token_id = END, None
    special_token_ids = (END,)
    tokens = (*(bytes([byte]) for byte in range(END)), b"")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _tokenizer() -> Any:
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=END + 1, eos_token=[END])


def follow(schema: Any, kind: str = "json_schema") -> Followed:
    """A schema, or the text of another grammar, before its answer. Raises ValueError for what cannot be followed."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    followed = Followed(GrammarSource(kind, text), _tokenizer(), KeyTokens(_Bytes.tokens))
    allowed(followed)
    return followed


def left_out_of(schema: dict[str, Any]) -> list[str]:
    """What is left out of a schema that is not strict."""
    return follow({**schema, "x-guidance": {"lenient": True}}).left_out


def allowed(followed: Followed) -> list[int]:
    """The bytes that may come next, and END. Raises ValueError where the grammar cannot be followed further."""
    mask = int.from_bytes(followed.reply(MASK, []), "little")
    if followed.error:
        raise ValueError(followed.error)
    return [byte for byte in range(END + 1) if mask >> byte & 1]


def takes(schema: Any, text: str) -> bool:
    """Whether a text may be the whole answer. Raises ValueError for a schema that cannot be followed."""
    followed = follow(schema)
    for byte in text.encode():
        if byte not in allowed(followed):
            return False
        followed.reply(ADVANCE, [byte])
    return END in allowed(followed)


def random_answer(followed: Followed, rng: random.Random) -> str | None:
    """A whole answer; None for one that grows too long. It has not to be likely, but may be."""
    text = bytearray()
    while len(text) < _MAX_BYTES:
        left = allowed(followed)
        if END in left and (len(left) == 1 or rng.random() < 0.5):
            return text.decode()
        left = [byte for byte in left if byte < 128] or left
        likely = [byte for byte in left if byte in _LIKELY]
        byte = rng.choice(likely if likely and rng.random() < 0.4 else left)
        followed.reply(ADVANCE, [byte])
        text.append(byte)
    return None


def problem_of_answer(followed: Followed) -> str:
    """What the validator says of the answer so far."""
    return followed.reply(CHECK, []).decode()
