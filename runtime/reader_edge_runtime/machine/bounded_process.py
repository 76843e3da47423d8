"""Work on what came from outside, in processes that the system bounds in time and memory and that end with this one."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, cast

from reader_edge_runtime.machine.bounded_worker import Channel, Stream, fork_session, start_clock

_MAX_WAIT_S = 60.0  # for a reply, of a process whose CPU time is bounded far below
_ROOT = Path(__file__).parents[2]


class BoundedProcess:
    """One session of a program: a channel to it, until it is closed or left."""

    def __init__(self, reader: Stream, writer: Stream, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.channel = Channel(reader, writer)
        self.close = weakref.finalize(self, _close, process, reader, writer)


class BoundedProgram:
    """Starts sessions of a program, which has what all need in common. Thread-safe.

    module: runs `bounded_worker.serve` as a program. messages: what it prepares from.
    """

    def __init__(self, module: str, messages: Iterable[bytes] = ()) -> None:
        self._module, self._messages = module, tuple(messages)
        self._lock = threading.Lock()
        self._forker: _Forker | None = None

    def start(self) -> BoundedProcess:
        """A new session. Raises OSError or EOFError where none can be had."""
        if sys.platform == "win32":
            process = _popen(self._module, subprocess.PIPE)
            started = BoundedProcess(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin), process)
            for message in self._messages:
                started.channel.send(message)
        else:
            started = self._fork()
        started.channel.receive()
        return started

    def _fork(self) -> BoundedProcess:
        with self._lock:
            if self._forker is not None:
                with contextlib.suppress(ConnectionError):  # somebody ended it
                    return self._forker.fork()
            self._forker = None
            self._forker = _Forker(self._module, self._messages)
            return self._forker.fork()


class _Forker:
    """The process that forks one for each session; it ends with this object."""

    def __init__(self, module: str, messages: Iterable[bytes]) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = _popen(module, theirs.fileno())
        except OSError:
            self._socket.close()
            raise
        stream = self._socket.makefile("rwb")
        weakref.finalize(self, _close, self.process, stream, self._socket)
        channel = Channel(stream, stream)
        for message in messages:
            channel.send(message)
        channel.receive()

    def fork(self) -> BoundedProcess:
        ours, theirs = socket.socketpair()
        with ours, theirs:  # the stream keeps ours open
            socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
            ours.settimeout(_MAX_WAIT_S)
            stream = ours.makefile("rwb")
        return BoundedProcess(stream, stream)


def run_bounded(
    work: Callable[[], bytes], *, cpu_s: float = 20.0, max_s: float = 120.0, memory_bytes: int = 1 << 30
) -> bytes | None:
    """What a function returns that runs in a copy of this process; None where it takes more than it may.

    max_s: however busy the machine is. memory_bytes: beside what this process has. On Windows, which cannot fork, it
    runs here, without bounds.
    """
    if sys.platform == "win32":
        return work()

    def session(channel: Channel) -> None:
        gc.freeze()  # our garbage is left alone: a session in it would wait for threads
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, max_s)  # should this process be killed meanwhile
        start_clock(cpu_s)
        channel.send(work())

    ours, theirs = socket.socketpair()
    with ours:
        with theirs, warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads, not copied
            is_collected = gc.isenabled()
            gc.disable()  # until the copy has frozen what it got; what this process has frozen stays so
            try:
                pid = fork_session(session, theirs, memory_bytes, (ours,))
            finally:
                if is_collected:
                    gc.enable()
        ours.settimeout(max_s)
        with ours.makefile("rwb") as stream, contextlib.suppress(EOFError, OSError):
            channel = Channel(stream, stream)
            try:
                channel.receive()
                return channel.receive()
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return None


def _popen(module: str, stdin: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-S", "-m", module],
        stdin=stdin,
        stdout=subprocess.PIPE if stdin == subprocess.PIPE else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(_ROOT)])},
        start_new_session=True,  # Ctrl-C is for the answer, not for these
    )


def _close(process: "subprocess.Popen[bytes] | None", *ends: "Stream | socket.socket") -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.close()
    if process is not None:
        with contextlib.suppress(OSError):
            process.kill()
            process.wait()
