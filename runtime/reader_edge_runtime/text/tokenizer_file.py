"""A tokenizer.json from outside: read, and refused where texts could cost more than they should."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.errors import PromptError, ReaderEdgeError, TokenizerError
from reader_edge_runtime.untrusted.plain_file import check_fetched
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK

_MAX_FILE_BYTES = 1 << 27
_MAX_PATTERN_CHARS = 1 << 14
_MAX_STEPS, _MAX_GROWTH = 64, 1 << 13  # ALBERT's come to 4752: rare characters, decomposed twice
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


def read_tokenizer(path: Path, remedy: str) -> FastTokenizer:
    """Read a file. Raises TokenizerError, which ends in the remedy."""
    check_fetched(path, TokenizerError)
    num_bytes = path.stat().st_size
    if num_bytes > _MAX_FILE_BYTES:
        raise TokenizerError(f"'{path}' has {num_bytes} bytes, more than a tokenizer may have: {remedy}.")
    with library_errors(f"'{path}' is not a readable tokenizer", remedy):
        fast = FastTokenizer.from_buffer(path.read_bytes().removeprefix(BYTE_ORDER_MARK))
    for parts in ((fast.normalizer, fast.pre_tokenizer), (fast.post_processor,), (fast.decoder,)):
        num_steps, most = _growth(*parts)
        if num_steps > _MAX_STEPS or most > _MAX_GROWTH:
            raise TokenizerError(
                f"'{path}' can make a text {most:.3g} times as long in {num_steps} steps, "
                f"more than the {_MAX_GROWTH} times in {_MAX_STEPS} steps that a tokenizer may: {remedy}."
            )
    check_patterns(fast, path, remedy)
    return fast


def check_patterns(fast: FastTokenizer, path: Path, remedy: str) -> None:
    """Raise TokenizerError for a regular expression that is too long."""
    for step in _steps_of(fast.normalizer, fast.pre_tokenizer, fast.decoder):
        text = (step.get("pattern") or {}).get("Regex") or ""
        if len(text) > _MAX_PATTERN_CHARS:
            raise TokenizerError(
                f"'{path}' has a regular expression of {len(text)} characters, more than the {_MAX_PATTERN_CHARS} that "
                f"one may have: {remedy}."
            )


def _steps_of(*parts: Any) -> list[dict[str, Any]]:
    return [step for part in parts if part is not None for step in _steps(json.loads(part.__getstate__()))]


def _growth(*parts: Any) -> tuple[int, float]:
    """How many steps parts of a tokenizer (or None) take together, and by how much they multiply a text at most."""
    steps = _steps_of(*parts)
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


@contextmanager
def library_errors(problem: str, remedy: str = "export the model again with its own tokenizer") -> Iterator[None]:
    """Word what the library raises in one sentence: plain Exception, and panics, which are not even that."""
    try:
        yield
    except ReaderEdgeError:
        raise
    except (TypeError, UnicodeError):
        raise PromptError("The text is not valid Unicode: it holds half of a surrogate pair.") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{problem} ({error}): {remedy}.") from error


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_TRIED = 1000  # tokens that are tried as neighbours


class TokenBytes:
    """The bytes of a tokenizer's tokens: those of a text's tokens, one after the other, are the text in UTF-8."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._added = fast.get_added_tokens_decoder()
        decoder = fast.decoder
        steps = () if decoder is None else _decoder_steps(json.loads(decoder.__getstate__()))
        kinds = {step["type"] for step in steps}
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


def _decoder_steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _decoder_steps(step)


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
