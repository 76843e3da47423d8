"""Client of the process that follows one answer's grammar: which tokens it allows next, and why the process ended."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from reader_edge_runtime.decoding.sampling.grammar_worker import WELL, packed, unpacked
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.machine.bounded_process import BoundedProcess
from reader_edge_runtime.machine.bounded_worker import OUT_OF_MEMORY, SessionEndedError

_TOO_SLOW = "takes more time than it may: simplify it"
_TOO_LARGE = "takes more memory than it may: simplify it"
_REASONS = {OUT_OF_MEMORY: _TOO_LARGE}
if sys.platform != "win32":
    _REASONS |= {
        -signal.SIGPROF: _TOO_SLOW,
        -signal.SIGABRT: _TOO_LARGE,  # how the library ends where it gets no memory
        -signal.SIGSEGV: "is nested deeper than can be followed: make it flatter",
    }


class Vocabulary(NamedTuple):
    """A model's tokens. tokens: the bytes of each. special_ids: of those that are no text, as ends are.

    tokenizer_json: its tokenizer in the form of tokenizer.json.
    """

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    tokenizer_json: str

    def messages(self) -> Iterator[bytes]:
        """What processes that follow grammars read first."""
        yield from map(packed, (self.eos_token_ids, self.special_ids, map(len, self.tokens)))
        yield b"".join(self.tokens)
        yield self.tokenizer_json.encode()


class GrammarProcess:
    """Raises ConfigError where the process says what is wrong with its grammar, or ends. name: of the grammar."""

    def __init__(self, process: BoundedProcess, name: str) -> None:
        self._process, self._channel, self._name = process, process.channel, name
        self._reason = ""  # why it ended, for all who ask later

    def begin(self, kind: str, text: str) -> tuple[list[int], list[str]]:
        """Give it the grammar. Returns the tokens that it forces, and what is left out of it."""
        with self:
            self._channel.send(json.dumps({"kind": kind, "text": text}).encode())
        forced, left_out = json.loads(self.read())
        return forced, left_out

    def ask(self, *numbers: int) -> None:
        with self:
            self._channel.send(packed(numbers))

    def read(self) -> bytes:
        """The reply to the oldest request without one."""
        with self:
            reply = self._channel.receive()
            if reply[:1] == WELL:
                return reply[1:]
        self.close()
        sentence = "The {} cannot be followed{}: change or simplify it.".format
        # The library's words quote the grammar, and its name may be that of a caller's tools.
        problem = reply[1:].decode(errors="replace")
        raise ConfigError(sentence(self._name, f" ({problem})")).with_public(sentence("grammar", ""))

    def read_numbers(self) -> list[int]:
        return unpacked(self.read())

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> None:
        """Something is exchanged, and may be the last."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError | EOFError | ValueError):  # ValueError: closed
            self.close()
            self._reason = reason = self._reason or end_reason(error)
            raise ConfigError(f"The {self._name} {reason}.").with_public(f"The grammar {reason}.") from None


def end_reason(error: BaseException) -> str:
    """Why a process answers no more, in words that a sentence about its grammar ends with. error: of its channel."""
    if isinstance(error, TimeoutError):
        return _TOO_SLOW
    code = error.code if isinstance(error, SessionEndedError) else 0
    if code in _REASONS:
        return _REASONS[code]
    if code < 0:
        return f"cannot be followed, since its process was ended by {signal.Signals(-code).name}: ask again"
    return "cannot be followed, since its process ended: ask again"
