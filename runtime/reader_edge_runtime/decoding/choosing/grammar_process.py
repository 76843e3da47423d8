"""Processes that follow grammars, seen from this side: how they are started, and what is said to them."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from reader_edge_runtime.decoding.choosing.grammar_worker import Channel, Stream

_WORKER = Path(__file__).with_name("grammar_worker.py")
_MAX_WAIT_S = 60.0  # for a process whose CPU time is bounded far below


class GrammarProcess:
    """The process of one grammar: a channel to it, until it is closed or left."""

    def __init__(self, reader: Stream, writer: Stream, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.channel = Channel(reader, writer)
        self.close = weakref.finalize(self, _close, reader, writer, process)


class GrammarProcesses:
    """Starts them for one model. Thread-safe.

    tokenizer_json: its tokenizer in the form of tokenizer.json.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer_json = tokenizer_json.encode()
        self._numbers = vocab_size, *eos_token_ids
        self._lock = threading.Lock()
        self._forker: _Forker | None = None

    def start(self) -> GrammarProcess:
        """A new one. Raises OSError where none can be had."""
        if sys.platform == "win32":
            process = _popen(subprocess.PIPE)
            stdin, stdout = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
            started = GrammarProcess(stdout, stdin, process)
            self._tell_tokenizer(started.channel)
            return started
        with self._lock:
            if self._forker is not None:
                with contextlib.suppress(ConnectionError):  # somebody ended it
                    return self._forker.fork()
            self._forker = None
            forker = _Forker()
            self._tell_tokenizer(forker.channel)
            forker.wait()
            self._forker = forker
            return forker.fork()

    def _tell_tokenizer(self, channel: Channel) -> None:
        channel.write_numbers(self._numbers)
        channel.write_text(self._tokenizer_json)
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

    def fork(self) -> GrammarProcess:
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
        return GrammarProcess(stream, stream)


def _popen(stdin: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-S", str(_WORKER)],
        stdin=stdin,
        stdout=subprocess.PIPE if stdin == subprocess.PIPE else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
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
