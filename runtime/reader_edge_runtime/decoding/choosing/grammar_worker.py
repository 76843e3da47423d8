"""Follows grammars in processes of their own, which the system bounds in time and memory; see grammar.py.

A script, which imports nothing of this project. It reads a tokenizer, then forks a process for each grammar, so that
none waits for a tokenizer of its own, and the end of one is no other's. A grammar is a program from outside: a line of
a regular expression can ask for more states than there is memory, and nothing stops it inside a process.

Messages are lists of int32, or texts, a length before each. To the process of a grammar: its source as JSON, then
messages whose first number says what they ask. From it: what is wrong with the grammar (empty for nothing) and the
tokens that it forces; then a reply to each message.
"""

import contextlib
import gc
import io
import json
import os
import signal
import socket
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

ADVANCE = 1  # by a token: GOES_ON or OVER, then the tokens that are forced next
CUT = 2  # how many tokens to force, a tree's tokens, their parents: the same of the tree that is left
MASK = 3  # the tokens that may come next, a bit each, as a text
GOES_ON, OVER = 0, 1
FORCED = -1  # in place of a node's number in the tree before

_MAX_MEMORY_BYTES = 128 << 20  # beside what the tokenizer takes
_MAX_START_S = 2.0  # of CPU time, until the grammar can be followed
_MAX_STEP_S = 0.5  # that it may take at once,
_REFILL_S = 0.01  # and for each token in the long run
_MAX_LEXER_STATES = 50_000  # up to 2 kB each
_MAX_ERROR_CHARACTERS = 200


Stream = BinaryIO | io.BufferedIOBase


class Matcher(Protocol):
    """What `cut` uses of llguidance's LLMatcher."""

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def try_consume_tokens(self, tokens: list[int]) -> int: ...

    def rollback(self, num_tokens: int) -> bool: ...

    def compute_ff_tokens(self) -> list[int]: ...


class Channel:
    """Messages over two streams of bytes. Raises EOFError where the other end is gone."""

    def __init__(self, reader: Stream, writer: Stream) -> None:
        self._reader, self._writer = reader, writer

    def read(self, num_bytes: int) -> bytes:
        data = self._reader.read(num_bytes)
        if len(data) < num_bytes:
            raise EOFError
        return data

    def read_text(self) -> bytes:
        return self.read(struct.unpack("<i", self.read(4))[0])

    def read_numbers(self) -> list[int]:
        return array("i", self.read_text()).tolist()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def write_text(self, text: bytes) -> None:
        self._writer.write(struct.pack("<i", len(text)) + text)

    def write_numbers(self, numbers: Sequence[int]) -> None:
        self.write_text(array("i", numbers).tobytes())

    def flush(self) -> None:
        self._writer.flush()


def main() -> None:
    """Read a tokenizer, then fork a process for each socket that comes. Without forks, be such a process."""
    if sys.platform == "win32":
        channel = Channel(sys.stdin.buffer, sys.stdout.buffer)
        _follow(channel, _read_tokenizer(channel))
        return
    control = socket.socket(fileno=sys.stdin.fileno())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the ends of processes
    with control.makefile("rb") as reader:
        tokenizer = _read_tokenizer(Channel(reader, reader))
    gc.freeze()
    control.sendall(b"+")
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        with contextlib.suppress(OSError):  # where no process can be had, the socket closes, which tells it
            if os.fork() == 0:
                control.detach()
                os.close(0)
                stream = socket.socket(fileno=descriptors[0]).makefile("rwb")
                _follow(Channel(stream, stream), tokenizer)
                os._exit(0)
        os.close(descriptors[0])


def _read_tokenizer(channel: Channel) -> Any:
    """The model's tokenizer, from the size of its vocabulary, its end tokens, and the text of tokenizer.json."""
    from llguidance import LLTokenizer

    vocab_size, *eos_token_ids = channel.read_numbers()
    return LLTokenizer(channel.read_text().decode(), n_vocab=vocab_size, eos_token=eos_token_ids or None)


def _follow(channel: Channel, tokenizer: Any) -> None:
    """Follow one grammar until nobody asks any more, or the allowed time is over, which ends the process."""
    _limit_memory()
    _start_clock(_MAX_START_S)
    matcher, error = _matcher(json.loads(channel.read_text()), tokenizer)
    channel.write_text(" ".join(error.split())[:_MAX_ERROR_CHARACTERS].rstrip(".").encode(errors="replace"))
    if error:
        channel.flush()
        return
    channel.write_numbers(matcher.compute_ff_tokens())
    channel.flush()
    left_s = _MAX_STEP_S
    with contextlib.suppress(EOFError):
        while True:
            kind, *numbers = channel.read_numbers()
            _start_clock(left_s)
            _REPLIES[kind](channel, matcher, numbers)
            if matcher.is_error():  # the grammar became too large for the library: the other end sees that this ends
                return
            channel.flush()
            left_s = min(_stop_clock(left_s) + (_REFILL_S if kind == ADVANCE else 0), _MAX_STEP_S)


def _advance(channel: Channel, matcher: Any, numbers: list[int]) -> None:
    matcher.consume_token(numbers[0])
    is_over = matcher.is_stopped()
    channel.write_numbers([OVER] if is_over else [GOES_ON, *matcher.compute_ff_tokens()])


def _cut(channel: Channel, matcher: Any, numbers: list[int]) -> None:
    num_nodes = len(numbers) // 2
    tree = cut(matcher, numbers[1 : num_nodes + 1], numbers[num_nodes + 1 :], numbers[0])
    channel.write_numbers([number for each in tree for number in each])


def _mask(channel: Channel, matcher: Any, numbers: list[int]) -> None:
    channel.write_text(matcher.compute_bitmask())


_REPLIES = {ADVANCE: _advance, CUT: _cut, MASK: _mask}


def cut(
    matcher: Matcher, token_ids: Sequence[int], parents: Sequence[int], max_forced: int
) -> tuple[list[int], list[int], list[int]]:
    """What a grammar leaves of a tree below a matcher's place, with up to max_forced tokens that it forces.

    Those come below the root, and again where the first chain of the tree ends. Returns tokens, parents, and each
    node's number before, or FORCED.
    """
    kept = _Tree(token_ids[0])
    kept.force(0, matcher.compute_ff_tokens()[:max_forced])
    numbers = {0: 0}
    for old in range(1, len(token_ids)):
        above, token_id = numbers.get(parents[old]), token_ids[old]
        if above is None:
            continue
        path = [*kept.path(above), token_id]
        if (above, token_id) in kept.numbers or matcher.validate_tokens(path) == len(path):
            numbers[old] = kept.add(above, token_id, old)
    end, node = 0, 1
    while node < len(token_ids) and parents[node] == node - 1 and node in numbers:
        end, node = numbers[node], node + 1
    path = kept.path(end)
    if path:
        num_consumed = matcher.try_consume_tokens(path)  # without an end token behind the grammar's last one
        if num_consumed == len(path):
            kept.force(end, matcher.compute_ff_tokens()[:max_forced])
        matcher.rollback(num_consumed)
    return kept.token_ids, kept.parents, kept.origins


class _Tree:
    """numbers: of nodes, by parent and token."""

    def __init__(self, token_id: int) -> None:
        self.token_ids, self.parents, self.origins = [token_id], [-1], [0]
        self.numbers: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token_id: int, origin: int) -> int:
        """The number of a node, which may be there already."""
        number = self.numbers.setdefault((parent, token_id), len(self.token_ids))
        if number == len(self.token_ids):
            self.token_ids.append(token_id)
            self.parents.append(parent)
            self.origins.append(origin)
        return number

    def force(self, node: int, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            node = self.add(node, token_id, FORCED)

    def path(self, node: int) -> list[int]:
        """Tokens from below the root to a node."""
        path = []
        while node:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]


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


def _limit_memory() -> None:
    if sys.platform == "win32":
        return
    import resource

    most = _MAX_MEMORY_BYTES + _address_space()
    limits = ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0))
    for kind, each in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses to bound a process's memory
            resource.setrlimit(kind, (each, each))


def _address_space() -> int:
    """Bytes of it that the tokenizer and the interpreter take, of which macOS says nothing."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 1 << 30


def _start_clock(cpu_s: float) -> None:
    """End this process after that much CPU time; it has no handler to run, so nothing delays it."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, max(cpu_s, 1e-3))


def _stop_clock(left_s: float) -> float:
    """CPU seconds that are left of those the clock was started with."""
    return left_s if sys.platform == "win32" else signal.setitimer(signal.ITIMER_PROF, 0)[0]


if __name__ == "__main__":
    main()
