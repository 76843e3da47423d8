"""The chat on a real (pseudo) terminal, with the keys a user presses."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

import pty
import select

# Makes the pseudo-terminal the process's own, so that Ctrl-C reaches it, and answers slow enough to be stopped.
_CHILD = """
import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from reader_edge.cli import main
from reader_edge_runtime.decoding.decoder import Decoder
step = Decoder.step
def slow_step(self):
    time.sleep(0.02)
    return step(self)
Decoder.step = slow_step
main(sys.argv[1:])
"""

MAX_SECONDS = 120  # of silence, however busy the machine


class Terminal:
    """A child process on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._keys, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"},
        )
        os.close(child)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def wait_for(self, text: str, start: int = 0) -> int:
        """Read until the screen shows a text after `start`; returns where it ends."""
        while text not in self.shown[start:]:
            self._read()
        return self.shown.index(text, start) + len(text)

    def wait_for_more(self, start: int) -> None:
        """Read until the screen shows anything after `start`."""
        while len(self.shown) <= start:
            self._read()

    def _read(self) -> None:
        assert select.select([self._keys], [], [], MAX_SECONDS)[0], f"nothing more came after {self.shown!r}"
        self.shown += os.read(self._keys, 4096).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keys)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal("run", "-n", "1500")
    yield opened
    opened.close()


@pytest.mark.long
def test_a_chat_answers_stops_at_ctrl_c_and_leaves_at_ctrl_d(terminal: Terminal) -> None:
    start = terminal.wait_for("> ")
    terminal.press("1 2 3 4 5 6 7 8 9 10\n")
    echoed = terminal.wait_for("10\r\n", start)
    terminal.wait_for_more(echoed)
    terminal.press("\x03")
    stopped = terminal.wait_for("Stopped.", echoed)
    terminal.wait_for("> ", stopped)
    terminal.press("\x04")
    assert terminal.process.wait(timeout=MAX_SECONDS) == 0
    assert "Traceback" not in terminal.shown


def test_a_prompt_on_a_terminal_ends_its_line() -> None:
    opened = Terminal("run", "-n", "3", "-p", "# tar")
    try:
        with suppress(OSError):  # which reading a terminal ends with
            while opened.process.poll() is None:  # a full terminal would have it wait
                opened._read()
        assert opened.process.wait(timeout=MAX_SECONDS) == 0
        assert opened.shown.endswith("\r\n")
    finally:
        opened.close()
