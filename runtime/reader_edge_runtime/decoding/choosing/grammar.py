"""Constraints that hold an answer to a grammar: a JSON schema, a regular expression, one of several texts.

llguidance (https://github.com/guidance-ai/llguidance) says which tokens may come next, and which must.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import Grammar
from reader_edge_runtime.errors import ConfigError, InstallationError

try:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
except ModuleNotFoundError:
    raise InstallationError("Grammars need llguidance, which is missing: pip install 'reader-edge[grammar]'.") from None

_MAX_KEPT = 32  # grammars that are ready for their next request
_MAX_SHOWN = 200  # characters of what the library says


class Grammars:
    """Makes constraints for one model. Thread-safe.

    tokenizer_json: its tokenizer in the form of tokenizer.json.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        eos = list(eos_token_ids) or None
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos)
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._ready: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def constraint(self, grammar: Grammar) -> "GrammarConstraint":
        """A constraint at its beginning. Raises ConfigError for what is no grammar of its kind, or too complex."""
        with self._lock:
            ready = self._ready.get(grammar)
            if ready is not None:
                self._ready.move_to_end(grammar)
                return GrammarConstraint(ready.deep_copy(), grammar.kind, self._vocab_size)
        made = LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=LLParserLimits(verbose_errors=False))
        _check(made, grammar.kind)
        with self._lock:
            self._ready[grammar] = made
            if len(self._ready) > _MAX_KEPT:
                self._ready.popitem(last=False)
            return GrammarConstraint(made.deep_copy(), grammar.kind, self._vocab_size)


class GrammarConstraint:
    """A `Constraint` of one request. Raises ConfigError where following the grammar takes more than it may."""

    def __init__(self, matcher: LLMatcher, kind: str, vocab_size: int) -> None:
        self._matcher = matcher
        self._kind = kind
        self._vocab_size = vocab_size

    @property
    def is_over(self) -> bool:
        return self._matcher.is_stopped()

    def mask(self) -> npt.NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        _check(self._matcher, self._kind)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def advance(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        _check(self._matcher, self._kind)

    def num_allowed(self, token_ids: list[int]) -> int:
        return self._matcher.validate_tokens(token_ids)

    def forced(self) -> list[int]:
        return self._matcher.compute_ff_tokens()


def _source(grammar: Grammar) -> str:
    """A grammar in the library's own form."""
    try:
        match grammar.kind:
            case "json_schema":
                # No free spaces: small models go on with them for ever.
                return LLMatcher.grammar_from_json_schema(grammar.text, overrides={"whitespace_flexible": False})
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "choice":
                quoted = [json.dumps(text, ensure_ascii=False) for text in json.loads(grammar.text)]
                return LLMatcher.grammar_from_lark("start: " + " | ".join(quoted))
            case _:
                return LLMatcher.grammar_from_lark(grammar.text)
    except (ValueError, RecursionError) as error:
        raise _error(grammar.kind, str(error)) from None


def _check(matcher: LLMatcher, kind: str) -> None:
    if matcher.is_error():
        raise _error(kind, matcher.get_error())


def _error(kind: str, reason: str) -> ConfigError:
    shown = " ".join(reason.split())[:_MAX_SHOWN].rstrip(".")
    return ConfigError(f"The grammar of kind {kind!r} cannot be followed ({shown}): change or simplify it.")
