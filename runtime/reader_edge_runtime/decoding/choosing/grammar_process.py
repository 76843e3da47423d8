"""Processes that follow grammars, seen from this side: how they are started, and what is said to them."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from reader_edge_runtime.decoding.choosing.grammar_worker.channel import OUT_OF_MEMORY, Channel, Stream

_WORKER = "grammar_worker"  # a folder beside this file
_MAX_WAIT_S = 60.0  # for a process whose CPU time is bounded far below


class Vocabulary(NamedTuple):
    """A model's tokens. tokens: the bytes of each. special_ids: of those that are no text, as ends are.

    tokenizer_json: its tokenizer in the form of tokenizer.json.
    """

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    tokenizer_json: str


class GrammarProcess:
    """The process of one grammar: a channel to it, until it is closed or left."""

    def __init__(
        self,
        reader: Stream,
        writer: Stream,
        tell_end: Callable[[int], int],
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """tell_end: the exit code of a process that ends, by its number."""
        self.channel = Channel(reader, writer)
        self.close = weakref.finalize(self, _close, reader, writer, process)
        self._tell_end = tell_end
        self._number = 0

    def greet(self) -> None:
        """Wait until it lives. Raises EOFError or OSError where it does not."""
        (self._number,) = self.channel.read_numbers()

    def reason(self, error: BaseException) -> str:
        """Why it answers no more, in words that a sentence about its grammar ends with. error: what reading raised."""
        if isinstance(error, TimeoutError):
            return _TOO_SLOW
        code = self._tell_end(self._number) if self._number else 0
        if code in _REASONS:
            return _REASONS[code]
        if code < 0:
            return f"cannot be followed, since its process was ended by {signal.Signals(-code).name}: ask again"
        return "cannot be followed, since its process ended: ask again"


_TOO_SLOW = "takes more time than it may: simplify it"
_TOO_LARGE = "takes more memory than it may: simplify it"
_REASONS = {OUT_OF_MEMORY: _TOO_LARGE}
if sys.platform != "win32":
    _REASONS |= {
        -signal.SIGPROF: _TOO_SLOW,
        -signal.SIGABRT: _TOO_LARGE,  # how the library ends where it gets no memory
        -signal.SIGSEGV: "is nested deeper than can be followed: make it flatter",
    }


class GrammarProcesses:
    """Starts them for one model. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._forker: _Forker | None = None

    def start(self) -> GrammarProcess:
        """A new one. Raises OSError or EOFError where none can be had."""
        if sys.platform == "win32":
            process = _popen(subprocess.PIPE)
            stdin, stdout = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
            started = GrammarProcess(stdout, stdin, lambda _: process.wait(_MAX_WAIT_S), process)
            self._tell_vocabulary(started.channel)
        else:
            started = self._fork()
        started.greet()
        return started

    def _fork(self) -> GrammarProcess:
        with self._lock:
            if self._forker is not None:
                with contextlib.suppress(ConnectionError):  # somebody ended it
                    return self._forker.fork(self._end_of)
            self._forker = None
            forker = _Forker()
            self._tell_vocabulary(forker.channel)
            forker.wait()
            self._forker = forker
            return forker.fork(self._end_of)

    def _end_of(self, number: int) -> int:
        """The exit code of a forked process that ends; 0 where nobody knows."""
        with self._lock:
            return 0 if self._forker is None else self._forker.end_of(number)

    def _tell_vocabulary(self, channel: Channel) -> None:
        vocabulary = self._vocabulary
        channel.write_numbers(vocabulary.eos_token_ids)
        channel.write_numbers(vocabulary.special_ids)
        channel.write_numbers([len(token) for token in vocabulary.tokens])
        channel.write_text(b"".join(vocabulary.tokens))
        channel.write_text(vocabulary.tokenizer_json.encode())
        channel.flush()


class _Forker:
    """The process that knows the tokenizer and forks one for each grammar; it ends with this object."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = _popen(theirs.fileno())
        except OSError:
            self._socket.close()
            raise
        stream = self._socket.makefile("rwb")
        self.channel = Channel(stream, stream)
        weakref.finalize(self, _close, stream, self._socket, self.process)

    def wait(self) -> None:
        """Until it knows the tokenizer. Raises OSError where it does not live to."""
        if self._socket.recv(1) != b"+":
            raise OSError(0, "it ends at once")

    def end_of(self, number: int) -> int:
        """The exit code of a process that ends; 0 where nobody knows."""
        try:
            self._socket.sendall(struct.pack("<i", number))
            return cast(int, struct.unpack("<i", self.channel.read(4))[0])
        except (OSError, EOFError):
            return 0

    def fork(self, tell_end: Callable[[int], int]) -> GrammarProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.settimeout(_MAX_WAIT_S)
        with ours:  # its stream keeps it open
            stream = ours.makefile("rwb")
        return GrammarProcess(stream, stream, tell_end)


def _popen(stdin: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-S", "-m", _WORKER],
        stdin=stdin,
        stdout=subprocess.PIPE if stdin == subprocess.PIPE else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])},
        start_new_session=True,  # Ctrl-C is for the answer, not for these
    )


def _close(*ends: "Stream | socket.socket | subprocess.Popen[bytes] | None") -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            if isinstance(end, subprocess.Popen):
                end.kill()
                end.wait()
            elif end is not None:
                end.close()
