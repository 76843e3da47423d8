"""The model's tokenizer, as llguidance wants it."""

import io
import json
from typing import Any

from reader_edge_runtime.decoding.sampling.grammar_worker import unpacked
from reader_edge_runtime.decoding.sampling.grammar_worker.unique_keys import KeyTokens
from reader_edge_runtime.machine.bounded_worker import Channel


def read_tokenizer(channel: Channel) -> tuple[Any, KeyTokens]:
    """The model's tokenizer, and in which of its tokens keys end."""
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    eos_token_ids, special_ids, lengths = (unpacked(channel.receive()) for _ in range(3))
    data = io.BytesIO(channel.receive())
    tokens = [data.read(length) for length in lengths]
    if not eos_token_ids:  # an id of its own, which no model says
        eos_token_ids, tokens = [len(tokens)], [*tokens, b""]
    special_ids = sorted({*special_ids, *eos_token_ids})
    spelling = _Spelling(channel.receive().decode(), tokens, special_ids, eos_token_ids[0])
    tokenizer = LLTokenizer(TokenizerWrapper(spelling), n_vocab=len(tokens), eos_token=eos_token_ids)
    spelling.spell_greedily = tokenizer.greedy_tokenize
    return tokenizer, KeyTokens(spelling.texts)


class _Spelling:
    """How texts are spelled in tokens, as llguidance asks for it. Special tokens are no texts; all others are.

    The library's own reading of tokenizer.json takes added tokens between angle brackets for special ones, and still
    spells texts with them and with special tokens.
    """

    bos_token_id = None

    def __init__(self, tokenizer_json: str, tokens: list[bytes], special_ids: list[int], eos_token_id: int) -> None:
        from tokenizers import Tokenizer

        self.eos_token_id = eos_token_id
        self.tokens, self.special_token_ids = tokens, special_ids
        self.texts = tokens.copy()
        for token_id in special_ids:
            self.texts[token_id] = b""
        self._fast = Tokenizer.from_str(json.dumps(_inside_text(json.loads(tokenizer_json))))
        self._fast.encode_special_tokens = True
        self._fast.no_truncation()
        self._fast.no_padding()
        self.spell_greedily: Any = None

    def __call__(self, text: str) -> list[int]:
        token_ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        is_same = b"".join([self.texts[token_id] for token_id in token_ids]) == text.encode()
        return token_ids if is_same else self.spell_greedily(text)


def _inside_text(part: Any) -> Any:
    """A tokenizer without what puts a space before a text."""
    if isinstance(part, list):
        return [_inside_text(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    part = {name: each if name in ("model", "added_tokens") else _inside_text(each) for name, each in part.items()}
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    return part | {name: value for name, value in changes.items() if name in part}
