"""Runs within a bounded process: one fork for each template or grammar, which the system ends where it takes too much.

Nothing inside an interpreter can bound what a template, a grammar or a regular expression does: each has a dozen ways
to take all memory or never to end, and the guard forgotten is the hole. It imports the standard library alone.
"""

import contextlib
import gc
import io
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

OUT_OF_MEMORY = 77  # the code of a session that got no more memory
_CODES = 256  # above all exit codes: a message of "negative length" is an exit code less this

Stream = BinaryIO | io.BufferedIOBase


class SessionEndedError(EOFError):
    """The session at the other end is over. code: its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Channel:
    """Messages over two streams of bytes, a length before each."""

    def __init__(self, reader: Stream, writer: Stream) -> None:
        self._reader, self._writer = reader, writer

    def receive(self) -> bytes:
        """The next message. Raises EOFError where the other end is gone, OSError or ValueError for a closed stream."""
        (size,) = struct.unpack("<i", self._read(4))
        if size < 0:
            raise SessionEndedError(size + _CODES)
        return self._read(size)

    def send(self, message: bytes) -> None:
        """Where the other end is gone nothing is raised: what is received next tells how it ended."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(struct.pack("<i", len(message)) + message)
            self._writer.flush()

    def send_end(self, code: int) -> None:
        """The last message: how the session ends."""
        self._writer.write(_end(code))
        self._writer.flush()

    def _read(self, num_bytes: int) -> bytes:
        try:
            data = self._reader.read(num_bytes)
        except ConnectionError:
            data = b""
        if len(data) < num_bytes:
            raise EOFError
        return data


Session = Callable[[Channel], None]


def serve(prepare: Callable[[Channel], Iterator[Session]], memory_bytes: int) -> None:
    """Prepare once, then run a session in a fork for each socket that comes. Without forks, run one session.

    prepare: reads what it needs, yields the session, and goes on behind the first one with what need not delay it.
    memory_bytes: that a session may take beside what is prepared.
    """
    if sys.platform == "win32":
        channel = Channel(sys.stdin.buffer, sys.stdout.buffer)
        _run(next(prepare(channel)), channel, memory_bytes)
        return
    control, running = socket.socket(fileno=sys.stdin.fileno()), dict[int, socket.socket]()
    signal.signal(signal.SIGCHLD, lambda *_: _report_ends(running))
    with control.makefile("rwb") as stream:
        prepared = prepare(channel := Channel(stream, stream))
        session = next(prepared)
        channel.send(b"")  # before any socket comes: this stream reads ahead
    gc.freeze()
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        theirs = socket.socket(fileno=descriptors[0])
        try:
            running[fork_session(session, theirs, memory_bytes, (control, *running.values()))] = theirs
        except OSError:
            theirs.close()  # which tells that no process can be had
        _report_ends(running)  # of one that ended before its number was known
        next(prepared, None)


def fork_session(session: Session, own: socket.socket, memory_bytes: int, others: Sequence[socket.socket]) -> int:
    """Run a session in a copy of this process, whose number this is. others: sockets to close there. Raises OSError."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        for each in others:
            each.close()
        stream = own.makefile("rwb")
        _run(session, Channel(stream, stream), memory_bytes)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def start_clock(cpu_s: float) -> None:
    """End this process after that much CPU time; it has no handler to run, so nothing delays it."""
    if sys.platform != "win32":  # which has no such timer
        signal.setitimer(signal.ITIMER_PROF, max(cpu_s, 1e-3))


def stop_clock(left_s: float = 0.0) -> float:
    """CPU seconds that are left of those the clock was started with."""
    return left_s if sys.platform == "win32" else signal.setitimer(signal.ITIMER_PROF, 0)[0]


def _run(session: Session, channel: Channel, memory_bytes: int) -> None:
    _limit_memory(memory_bytes)
    channel.send(b"")  # it lives
    try:
        with contextlib.suppress(EOFError, OSError):
            session(channel)
    except MemoryError:
        channel.send_end(OUT_OF_MEMORY)


def _report_ends(running: dict[int, socket.socket]) -> None:
    """Report to those who wait for sessions how these ended."""
    for pid, theirs in list(running.items()):
        with contextlib.suppress(OSError):  # reported already, or nobody waits
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with running.pop(pid):
                    theirs.send(_end(os.waitstatus_to_exitcode(status)), socket.MSG_DONTWAIT)


def _end(code: int) -> bytes:
    return struct.pack("<i", code - _CODES)


def _limit_memory(num_bytes: int) -> None:
    if sys.platform == "win32":
        return
    import faulthandler
    import resource

    faulthandler.disable()  # a library that aborts where memory is short is what bounds are for
    limits = ((resource.RLIMIT_AS, num_bytes + _address_space()), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0))
    for kind, most in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses to bound a process's memory
            resource.setrlimit(kind, (most, most))


def _address_space() -> int:
    """Bytes of it that this process takes, of which macOS says nothing."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 1 << 30
