"""The program that runs in a process of its own for each grammar: which tokens it allows at a place of an answer."""

import importlib
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from reader_edge_runtime.decoding.sampling.grammar_worker import (
    ADVANCE,
    CHECK,
    CUT,
    GOES_ON,
    MASK,
    OVER,
    UNCHECKED,
    WELL,
    WRONG,
    packed,
    unpacked,
)
from reader_edge_runtime.decoding.sampling.grammar_worker.answer_check import problem_of
from reader_edge_runtime.decoding.sampling.grammar_worker.enforced_numbers import Exponents
from reader_edge_runtime.decoding.sampling.grammar_worker.grammar_source import GrammarSource
from reader_edge_runtime.decoding.sampling.grammar_worker.tree_cut import cut
from reader_edge_runtime.decoding.sampling.grammar_worker.unique_keys import KeyTokens, UniqueKeys
from reader_edge_runtime.decoding.sampling.grammar_worker.vocabulary import read_tokenizer
from reader_edge_runtime.machine.bounded_worker import Channel, Session, serve, start_clock, stop_clock

_MAX_MEMORY_BYTES = 128 << 20  # beside what the tokenizer takes
_MAX_START_S = 2.0  # of CPU time, until the grammar can be followed
_MAX_STEP_S = 0.5  # that it may take at once,
_REFILL_S = 0.01  # and for each token in the long run
_MAX_LEXER_STATES = 50_000  # up to 2 kB each
_MAX_ERROR_CHARACTERS = 200


def prepare(channel: Channel) -> Iterator[Session]:
    """Read the tokenizer, then what compares answers with their schemas."""
    yield partial(follow, *read_tokenizer(channel))
    with suppress(Exception):
        importlib.import_module("jsonschema")


def follow(tokenizer: Any, key_tokens: KeyTokens, channel: Channel) -> None:
    """Follow one grammar until nobody asks any more, or the allowed time is over, which ends the process."""
    request = channel.receive()
    start_clock(_MAX_START_S)
    grammar = json.loads(request)
    try:
        followed = GrammarMatcher(GrammarSource(grammar["kind"], grammar["text"]), tokenizer, key_tokens)
    except (ValueError, RecursionError) as error:
        channel.send(_reply(str(error) or type(error).__name__, b""))
        return
    problem = followed.error
    channel.send(_reply(problem, b"" if problem else json.dumps([followed.forced, followed.left_out]).encode()))
    left_s = _MAX_STEP_S
    while not problem:
        kind, *numbers = unpacked(channel.receive())
        start_clock(left_s if kind != CHECK else _MAX_START_S)
        reply = followed.reply(kind, numbers)
        problem = followed.error  # the grammar became too large for the library
        channel.send(_reply(problem, reply))
        left_s = min(stop_clock(left_s) + (_REFILL_S if kind == ADVANCE else 0), _MAX_STEP_S)


def _reply(error: str, reply: bytes) -> bytes:
    return WRONG + _sentence(error).encode(errors="replace") if error else WELL + reply


def _sentence(error: str) -> str:
    return _shortened(" ".join(error.replace("<non-verbose/>", "").split()).rstrip("."))


def _shortened(error: str) -> str:
    """The beginning of a long one and, of a pattern's, what is wrong with it, which stands behind the pattern."""
    place = error.rfind(" error: ")
    if len(error) <= _MAX_ERROR_CHARACTERS or place < 0:
        return error[:_MAX_ERROR_CHARACTERS]
    half = _MAX_ERROR_CHARACTERS // 2
    return f"{error[: min(place, half)]} ...{error[place : place + half]}"


class GrammarMatcher:
    """A grammar at a place of an answer. left_out: what of its schemas is not enforced, in words.

    Raises ValueError or RecursionError for what is no grammar.
    """

    def __init__(self, source: GrammarSource, tokenizer: Any, key_tokens: KeyTokens) -> None:
        self._matcher = self._read(source, tokenizer)
        self._tokenizer = tokenizer
        self._key_tokens = key_tokens
        self._has_key_patterns, self._has_calls = source.has_key_patterns, source.has_calls
        source.note(self._matcher.get_grammar_warnings())
        self._schema = source.schema
        self._has_json = source.schema is not None or source.has_calls
        self._has_keys = self._has_json and source.is_open
        self._begin()
        self._is_free = False  # whether what comes next is a text around calls, or an argument without quotes
        self._text = bytearray()
        self._has_begun = self._is_stuck = False
        self._replies = {ADVANCE: self._advance, CUT: self._cut, MASK: self._mask, CHECK: self._check}
        self.left_out = list(dict.fromkeys(source.left_out))

    @property
    def forced(self) -> list[int]:
        """Tokens that come next."""
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    @property
    def error(self) -> str:
        """What is wrong with the grammar."""
        error: str = self._matcher.get_error()
        if "NoExtensionBias" in error or self._is_stuck:
            return "it allows nothing" if not self._has_begun else "it allows nothing that could come next"
        return error.replace("Unsatisfiable schema", "it allows nothing")

    def reply(self, kind: int, numbers: list[int]) -> bytes:
        return self._replies[kind](numbers)

    @staticmethod
    def _read(source: GrammarSource, tokenizer: Any) -> Any:
        """llguidance's matcher of a grammar, of which as little is left out as has to be."""
        from llguidance import LLMatcher, LLParserLimits

        while True:
            text = source.library_text()
            for precomputes in (True, False):  # without it more can be followed, more slowly
                limits = LLParserLimits(
                    max_lexer_states=_MAX_LEXER_STATES, precompute_large_lexemes=precomputes, verbose_errors=False
                )
                matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
                if "precompute" not in matcher.get_error():
                    break
            error = matcher.get_error()
            if not error or "Unsatisfiable" in error or not source.weaken(_sentence(error)):
                return matcher

    def _begin(self) -> None:
        """JSON may begin with the next byte. It has no tab, so where one may come there is none."""
        self._exponents, self._keys = Exponents(self._key_tokens), UniqueKeys(self._key_tokens)

    def _advance(self, numbers: list[int]) -> bytes:
        self._has_begun = True
        self._matcher.consume_token(numbers[0])
        text = self._key_tokens.tokens[numbers[0]]
        self._text += text
        self._exponents.push(text)
        self._keys.push(text)
        self._is_free = self._has_calls and self._matcher.validate_tokens(self._key_tokens.tab) > 0
        if self._is_free:
            self._begin()
        is_over = self._matcher.is_stopped()
        return packed([OVER] if is_over else [GOES_ON, *self.forced])

    def _cut(self, numbers: list[int]) -> bytes:
        num_nodes = len(numbers) // 2
        tree = cut(self._matcher, numbers[1 : num_nodes + 1], numbers[num_nodes + 1 :], numbers[0])
        return packed(number for each in tree for number in each)

    def _mask(self, numbers: list[int]) -> bytes:
        mask: bytes = self._matcher.compute_bitmask()
        ahead = self._ahead if self._has_key_patterns else None
        forbidden = self._exponents.forbidden(mask) if self._has_json and not self._is_free else []
        if self._has_keys and not self._is_free:
            forbidden += self._keys.forbidden(ahead)
        if not forbidden:
            return mask
        left = bytearray(mask)
        for token_id in forbidden:
            left[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
        self._is_stuck = not any(left) and self._has_key_patterns  # every key was there before
        return bytes(left) if any(left) else mask

    def _ahead(self, text: bytes) -> Iterator[int]:
        """The tokens that may come behind a further text."""
        ahead, token_ids = self._matcher.deep_copy(), self._tokenizer.greedy_tokenize(text.decode(errors="replace"))
        if ahead.try_consume_tokens(token_ids) == len(token_ids):
            left = int.from_bytes(ahead.compute_bitmask(), "little")
            while left:
                yield (left & -left).bit_length() - 1
                left &= left - 1

    def _check(self, numbers: list[int]) -> bytes:
        """What a whole answer, or another text, has that the schema does not allow. numbers: the text's bytes."""
        is_whole = bool(numbers) or self._matcher.is_accepting() or self._matcher.is_stopped()
        if self._schema is None or not is_whole:
            return b""
        try:
            return problem_of(self._schema, bytes(numbers or self._text).decode()).encode(errors="replace")
        except Exception as error:  # of a validator that is missing, or a schema that it cannot read
            return f"{UNCHECKED}{type(error).__name__}".encode()


if __name__ == "__main__":
    serve(prepare, _MAX_MEMORY_BYTES)
