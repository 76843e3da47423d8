"""The process that reads the tokenizer and forks one for each grammar."""

import contextlib
import gc
import importlib
import os
import signal
import socket
import struct
import sys

from .channel import Channel
from .following import follow
from .vocabulary import read_tokenizer

_MAX_ENDED = 256  # processes whose end is remembered


def main() -> None:
    """Read a tokenizer, then fork a process for each socket that comes. Without forks, be such a process."""
    if sys.platform == "win32":
        channel = Channel(sys.stdin.buffer, sys.stdout.buffer)
        follow(channel, *read_tokenizer(channel))
        return
    control = socket.socket(fileno=sys.stdin.fileno())
    ended: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(ended))
    with control.makefile("rb") as reader:
        tokenizer, key_tokens = read_tokenizer(Channel(reader, reader))
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
                follow(Channel(stream, stream), tokenizer, key_tokens)
                os._exit(0)
        os.close(descriptors[0])
        with contextlib.suppress(Exception):  # once for those to come; the first grammar does not wait for it
            importlib.import_module("jsonschema")


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


if __name__ == "__main__":
    main()
