"""The bytes that one token stands for, also where it is a part of a character.

A decoder of text cannot tell them: it decodes a part of a character to a replacement character, and may leave out the
space at a text's beginning.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_TRIED = 1000  # tokens that are tried as neighbours


class TokenBytes:
    """The bytes of a tokenizer's tokens: those of a text's tokens, one after the other, are the text in UTF-8."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._added = fast.get_added_tokens_decoder()
        decoder = fast.decoder
        kinds = set() if decoder is None else {step["type"] for step in _steps(json.loads(decoder.__getstate__()))}
        self._is_byte_level, self._has_byte_tokens = "ByteLevel" in kinds, "ByteFallback" in kinds

    def of(self, token_id: int, is_first: bool = False) -> bytes:
        """See `Tokenizer.token_bytes`."""
        alone = self._alone(token_id, is_first)
        return self._beside_neighbours([token_id], is_first)[0].encode() if alone is None else alone

    def every(self, num_tokens: int) -> list[bytes]:
        """Those of all ids below num_tokens, none of them first: sooner than one after the other."""
        alone = [self._alone(token_id, is_first=False) for token_id in range(num_tokens)]
        others = [token_id for token_id, each in enumerate(alone) if each is None]
        texts = iter(self._beside_neighbours(others, is_first=False) if others else ())
        return [next(texts).encode() if each is None else each for each in alone]

    def _alone(self, token_id: int, is_first: bool) -> bytes | None:
        """The bytes that its spelling tells; None where its neighbours matter."""
        spelled: str | None = self._fast.id_to_token(token_id)
        if spelled is None:
            return b""
        if token_id in self._added and self._added[token_id].special:
            return spelled.encode()
        if self._is_byte_level:
            return _of_byte_level(spelled)
        if self._has_byte_tokens and (found := _BYTE_TOKEN.fullmatch(spelled)):
            byte = bytes.fromhex(found[1])
            if not (is_first and byte == b" "):  # which may be left out there like any space
                return byte
        return None

    def _beside_neighbours(self, token_ids: Sequence[int], is_first: bool) -> list[str]:
        """The text that each token adds before another and, unless it is the first, behind one."""
        after = [self._neighbour]
        before = [] if is_first else after
        texts = self._fast.decode_batch([[*before, token_id, *after] for token_id in token_ids])
        begin = len(self._fast.decode(before))
        num_behind = len(self._fast.decode(2 * after)) - len(self._fast.decode(after))
        return [text[begin : len(text) - num_behind] for text in texts]

    @cached_property
    def _neighbour(self) -> int:
        """A token with a text that does not hang on what stands beside it."""
        for token_id in range(min(self._fast.get_vocab_size(), _MAX_TRIED)):
            text, twice = self._fast.decode([token_id]), self._fast.decode([token_id, token_id])
            if text.strip() and _REPLACEMENT not in twice and twice.startswith(text) and len(twice) > len(text):
                return token_id
        return 0


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _steps(step)


def _of_byte_level(spelled: str) -> bytes:
    """As the library decodes: a token with a character that stands for no byte is a text itself."""
    codes = [_BYTE_OF.get(character) for character in spelled]
    known = [code for code in codes if code is not None]
    return bytes(known) if len(known) == len(codes) else spelled.encode()


def _byte_alphabet() -> dict[str, int]:
    """Which byte each character stands for (Radford et al. 2019, GPT-2, `bytes_to_unicode`)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
