"""Grammars followed in this process without a model, a byte a token, and a few longer tokens if they are wanted."""

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

    def __init__(self, more: tuple[bytes, ...]) -> None:
        self.tokens = (*(bytes([byte]) for byte in range(END)), b"", *more)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _tokenizer(more: tuple[bytes, ...]) -> tuple[Any, KeyTokens]:
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    tokens = _Bytes(more).tokens
    wrapper = TokenizerWrapper(_Bytes(more))
    return LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=[END]), KeyTokens(tokens)


def follow(schema: Any, kind: str = "json_schema", more: tuple[bytes, ...] = ()) -> Followed:
    """A schema, or the text of another grammar, before its answer. Raises ValueError for what cannot be followed.

    more: tokens beside single bytes, behind END.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    followed = Followed(GrammarSource(kind, text), *_tokenizer(more))
    allowed(followed)
    return followed


def left_out_of(schema: dict[str, Any]) -> list[str]:
    """What is left out of a schema that is not strict."""
    return follow({**schema, "x-guidance": {"lenient": True}}).left_out


def allowed(followed: Followed) -> list[int]:
    """The tokens that may come next. Raises ValueError where the grammar cannot be followed further."""
    mask = int.from_bytes(followed.reply(MASK, []), "little")
    if followed.error:
        raise ValueError(followed.error)
    return [token_id for token_id in range(len(followed._key_tokens.tokens)) if mask >> token_id & 1]


def takes(schema: Any, text: str) -> bool:
    """Whether a text may be the whole answer. Raises ValueError for a schema that cannot be followed."""
    followed = schema if isinstance(schema, Followed) else follow(schema)
    for byte in text.encode():
        if byte not in allowed(followed):
            return False
        followed.reply(ADVANCE, [byte])
    return END in allowed(followed)


def random_answer(
    followed: Followed, rng: random.Random, likely: bytes = _LIKELY, max_bytes: int = _MAX_BYTES, eagerness: float = 0.4
) -> str | None:
    """A whole answer; None for one that grows too long. It has not to be likely, but may be.

    eagerness: how often a likely byte, or a longer token, is taken where there is one.
    """
    text = bytearray()
    while len(text) < max_bytes:
        left = allowed(followed)
        if END in left and (len(left) == 1 or rng.random() < 0.5):
            return text.decode()
        left = [token_id for token_id in left if token_id < 128 or token_id > END] or left
        wanted = [token_id for token_id in left if token_id > END or token_id in likely]
        token_id = rng.choice(wanted if wanted and rng.random() < eagerness else left)
        followed.reply(ADVANCE, [token_id])
        text += followed._key_tokens.tokens[token_id]
    return None


def problem_of_answer(followed: Followed) -> str:
    """What the validator says of the answer so far."""
    return followed.reply(CHECK, []).decode()
