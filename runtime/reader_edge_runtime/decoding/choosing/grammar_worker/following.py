"""One grammar, followed in a process of its own."""

import contextlib
import json
import os
from array import array
from typing import Any

from .channel import ADVANCE, CUT, GOES_ON, MASK, OUT_OF_MEMORY, OVER, READABLE, Channel
from .limits import limit_memory, start_clock, stop_clock
from .tree_cut import cut

_MAX_START_S = 2.0  # of CPU time, until the grammar can be followed
_MAX_STEP_S = 0.5  # that it may take at once,
_REFILL_S = 0.01  # and for each token in the long run
_MAX_LEXER_STATES = 50_000  # up to 2 kB each
_MAX_ERROR_CHARACTERS = 200


def follow(channel: Channel, tokenizer: Any) -> None:
    """Follow one grammar until nobody asks any more, or the allowed time is over, which ends the process."""
    limit_memory()
    channel.write_numbers([os.getpid()])
    channel.flush()
    with contextlib.suppress(EOFError, OSError):
        try:
            _answer(channel, tokenizer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _answer(channel: Channel, tokenizer: Any) -> None:
    start_clock(_MAX_START_S)
    grammar = json.loads(channel.read_text())
    if grammar["kind"] == READABLE:
        _reply(channel, "", array("i", map(_is_readable, json.loads(grammar["text"]))).tobytes())
        return
    matcher, error = _matcher(grammar, tokenizer)
    _reply(channel, error, b"" if error else array("i", matcher.compute_ff_tokens()).tobytes())
    left_s = _MAX_STEP_S
    while not error:
        kind, *numbers = channel.read_numbers()
        start_clock(left_s)
        reply = _REPLIES[kind](matcher, numbers)
        error = matcher.get_error()  # the grammar became too large for the library
        _reply(channel, error, reply)
        left_s = min(stop_clock(left_s) + (_REFILL_S if kind == ADVANCE else 0), _MAX_STEP_S)


def _reply(channel: Channel, error: str, reply: bytes) -> None:
    sentence = " ".join(error.replace("<non-verbose/>", "").split()).rstrip(".")
    channel.write_text(_shortened(sentence).encode(errors="replace"))
    if not error:
        channel.write_text(reply)
    channel.flush()


def _shortened(error: str) -> str:
    """The beginning of a long one and, of a pattern's, what is wrong with it, which stands behind the pattern."""
    place = error.rfind(" error: ")
    if len(error) <= _MAX_ERROR_CHARACTERS or place < 0:
        return error[:_MAX_ERROR_CHARACTERS]
    half = _MAX_ERROR_CHARACTERS // 2
    return f"{error[: min(place, half)]} ...{error[place : place + half]}"


def _advance(matcher: Any, numbers: list[int]) -> bytes:
    matcher.consume_token(numbers[0])
    is_over = matcher.is_stopped()
    return array("i", [OVER] if is_over else [GOES_ON, *matcher.compute_ff_tokens()]).tobytes()


def _cut(matcher: Any, numbers: list[int]) -> bytes:
    num_nodes = len(numbers) // 2
    tree = cut(matcher, numbers[1 : num_nodes + 1], numbers[num_nodes + 1 :], numbers[0])
    return array("i", [number for each in tree for number in each]).tobytes()


def _mask(matcher: Any, numbers: list[int]) -> bytes:
    mask: bytes = matcher.compute_bitmask()
    return mask


_REPLIES = {ADVANCE: _advance, CUT: _cut, MASK: _mask}


def _matcher(grammar: dict[str, str], tokenizer: Any) -> tuple[Any, str]:
    """llguidance's matcher of a grammar, and what is wrong with it."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        source = _source(grammar["kind"], grammar["text"])
        for precomputes in (True, False):  # without it more can be followed, more slowly
            limits = LLParserLimits(
                max_lexer_states=_MAX_LEXER_STATES, precompute_large_lexemes=precomputes, verbose_errors=False
            )
            matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
            if "precompute" not in matcher.get_error():
                break
    except (ValueError, RecursionError) as error:
        return None, str(error) or type(error).__name__
    return matcher, matcher.get_error()


def _is_readable(pattern: str) -> bool:
    """Whether the library reads a pattern of a JSON schema."""
    from llguidance import LLMatcher

    schema = json.dumps({"type": "string", "pattern": pattern})
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))


def _source(kind: str, text: str) -> str:
    """A grammar in the library's own form. Raises ValueError or RecursionError."""
    from llguidance import LLMatcher

    match kind:
        case "json_schema":
            # No free spaces: small models go on with them for ever.
            return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            quoted = [json.dumps(each, ensure_ascii=False) for each in json.loads(text)]
            return LLMatcher.grammar_from_lark("start: " + " | ".join(quoted))
        case _:
            return LLMatcher.grammar_from_lark(text)
