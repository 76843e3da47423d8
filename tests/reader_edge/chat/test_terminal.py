"""The chat on a real (pseudo) terminal, with the keys a user presses."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

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
        deadline = time.monotonic() + 30
        while text not in self.shown[start:]:
            assert time.monotonic() < deadline, f"{text!r} did not come, but {self.shown!r}"
            if select.select([self._keys], [], [], 0.5)[0]:
                self.shown += os.read(self._keys, 4096).decode(errors="replace")
        return self.shown.index(text, start) + len(text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keys)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal("run", "-n", "1500")
    yield opened
    opened.close()


def test_a_chat_answers_stops_at_ctrl_c_and_leaves_at_ctrl_d(terminal: Terminal) -> None:
    start = terminal.wait_for("> ")
    terminal.press("1 2 3 4 5 6 7 8 9 10\n")
    echoed = terminal.wait_for("10\r\n", start)
    time.sleep(0.3)
    terminal.press("\x03")
    stopped = terminal.wait_for("Stopped.", echoed)
    terminal.wait_for("> ", stopped)
    terminal.press("\x04")
    assert terminal.process.wait(timeout=30) == 0
    assert "Traceback" not in terminal.shown


def test_a_prompt_on_a_terminal_ends_its_line() -> None:
    opened = Terminal("run", "-n", "3", "-p", "# tar")
    try:
        opened.wait_for("\r\n")
        assert opened.process.wait(timeout=30) == 0
    finally:
        opened.close()
