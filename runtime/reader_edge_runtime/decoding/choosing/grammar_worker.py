"""Follows grammars in processes of their own, which the system bounds in time and memory; see grammar.py.

A script, which imports nothing of this project. It reads a tokenizer, then forks a process for each grammar, so that
none waits for a tokenizer of its own, and the end of one is no other's. A grammar is a program from outside: a line of
a regular expression can ask for more states than there is memory, and nothing stops it inside a process.

Messages are lists of int32, or texts, a length before each. From the process of a grammar: its number. To it: the
grammar as JSON, then messages whose first number says what they ask. From it, for the grammar and for each message:
what is wrong (empty for nothing) and, if nothing is, the reply. To the process that forks: a descriptor for each
grammar, or the number of a process, whose end it then tells.
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
READABLE = "readable"  # a kind of grammar that is none: a list of patterns, of which the reply says which can be read
OUT_OF_MEMORY = 77  # what such a process ends with
FORCED = -1  # in place of a node's number in the tree before

_MAX_MEMORY_BYTES = 128 << 20  # beside what the tokenizer takes
_MAX_START_S = 2.0  # of CPU time, until the grammar can be followed
_MAX_STEP_S = 0.5  # that it may take at once,
_REFILL_S = 0.01  # and for each token in the long run
_MAX_LEXER_STATES = 50_000  # up to 2 kB each
_MAX_ERROR_CHARACTERS = 200
_MAX_ENDED = 256  # processes whose end is remembered


Stream = BinaryIO | io.BufferedIOBase


class Matcher(Protocol):
    """What `cut` uses of llguidance's LLMatcher."""

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def try_consume_tokens(self, tokens: list[int]) -> int: ...

    def deep_copy(self) -> "Matcher": ...

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
    ended: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(ended))
    with control.makefile("rb") as reader:
        tokenizer = _read_tokenizer(Channel(reader, reader))
    gc.freeze()
    control.sendall(b"+")
    while True:
        message, descriptors, *_ = socket.recv_fds(control, 4, 1)
        if not message:
            return
        if not descriptors:
            control.sendall(struct.pack("<i", _end_of(struct.unpack("<i", message)[0], ended)))
            continue
        with contextlib.suppress(OSError):  # where no process can be had, the socket closes, which tells it
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.detach()
                os.close(0)
                stream = socket.socket(fileno=descriptors[0]).makefile("rwb")
                _follow(Channel(stream, stream), tokenizer)
                os._exit(0)
        os.close(descriptors[0])


def _reap(ended: dict[int, int]) -> None:
    """Remember how processes ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ended[pid] = os.waitstatus_to_exitcode(status)
            if len(ended) > _MAX_ENDED:
                del ended[next(iter(ended))]


def _end_of(pid: int, ended: dict[int, int]) -> int:
    """The exit code of a process that ends, negative for a signal; 0 for one that is not known."""
    if pid not in ended:
        with contextlib.suppress(ChildProcessError):  # it was reaped meanwhile
            ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return ended.get(pid, 0)


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
        self._texts = tokens.copy()
        for token_id in special_ids:
            self._texts[token_id] = b""
        self._fast = Tokenizer.from_str(json.dumps(_amid_text(json.loads(tokenizer_json))))
        self._fast.encode_special_tokens = True
        self._fast.no_truncation()
        self._fast.no_padding()
        self.spell_greedily: Any = None

    def __call__(self, text: str) -> list[int]:
        token_ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        is_same = b"".join([self._texts[token_id] for token_id in token_ids]) == text.encode()
        return token_ids if is_same else self.spell_greedily(text)


def _amid_text(part: Any) -> Any:
    """A tokenizer without what puts a space before a text."""
    if isinstance(part, list):
        return [_amid_text(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    part = {name: each if name in ("model", "added_tokens") else _amid_text(each) for name, each in part.items()}
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    return part | {name: value for name, value in changes.items() if name in part}


def _read_tokenizer(channel: Channel) -> Any:
    """The model's tokenizer: its end tokens, its special tokens, the lengths of all, their bytes, tokenizer.json."""
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    eos_token_ids, special_ids, lengths = channel.read_numbers(), channel.read_numbers(), channel.read_numbers()
    data = io.BytesIO(channel.read_text())
    tokens = [data.read(length) for length in lengths]
    if not eos_token_ids:  # an id of its own, which no model says
        eos_token_ids, tokens = [len(tokens)], [*tokens, b""]
    special_ids = sorted({*special_ids, *eos_token_ids})
    spelling = _Spelling(channel.read_text().decode(), tokens, special_ids, eos_token_ids[0])
    tokenizer = LLTokenizer(TokenizerWrapper(spelling), n_vocab=len(tokens), eos_token=eos_token_ids)
    spelling.spell_greedily = tokenizer.greedy_tokenize
    return tokenizer


def _follow(channel: Channel, tokenizer: Any) -> None:
    """Follow one grammar until nobody asks any more, or the allowed time is over, which ends the process."""
    _limit_memory()
    channel.write_numbers([os.getpid()])
    channel.flush()
    with contextlib.suppress(EOFError, OSError):
        try:
            _answer(channel, tokenizer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _answer(channel: Channel, tokenizer: Any) -> None:
    _start_clock(_MAX_START_S)
    grammar = json.loads(channel.read_text())
    if grammar["kind"] == READABLE:
        _reply(channel, "", array("i", map(_is_readable, json.loads(grammar["text"]))).tobytes())
        return
    matcher, error = _matcher(grammar, tokenizer)
    _reply(channel, error, b"" if error else array("i", matcher.compute_ff_tokens()).tobytes())
    left_s = _MAX_STEP_S
    while not error:
        kind, *numbers = channel.read_numbers()
        _start_clock(left_s)
        reply = _REPLIES[kind](matcher, numbers)
        error = matcher.get_error()  # the grammar became too large for the library
        _reply(channel, error, reply)
        left_s = min(_stop_clock(left_s) + (_REFILL_S if kind == ADVANCE else 0), _MAX_STEP_S)


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
        ahead = matcher.deep_copy()  # a rollback loses its place behind tokens that a grammar names by their ids
        if ahead.try_consume_tokens(path) == len(path):  # without an end token behind the grammar's last one
            kept.force(end, ahead.compute_ff_tokens()[:max_forced])
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
