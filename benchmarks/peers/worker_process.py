"""A runtime's process in the comparison, stopped by a signal while others are measured."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.llama_server import peer_environment

WORKERS = Path(__file__).parent / "workers"


class WorkerError(Exception):
    """A worker failed; the message is the peer's own reason."""


class WorkerProcess:
    """One loaded model of one runtime; `ask` speaks the protocol of workers/protocol.py.

    pid: the process. peak_bytes: its resident memory at its highest so far. Between questions the process is stopped,
    since thread pools that spin for work would slow the worker whose turn it is.
    """

    def __init__(self, python: Path, script: str, log: Path, environment: Mapping[str, str]) -> None:
        self.peak_bytes = 0
        self._log = log
        self._stderr = log.open("w")
        self._process = subprocess.Popen(
            [python, WORKERS / script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**peer_environment(), **environment},
        )
        self.pid = self._process.pid

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises WorkerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"do": operation, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"ended with status {self._process.wait()}: {self._last_words()}")
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # the signal takes its time
        answer: dict[str, Any] = json.loads(line)
        self.peak_bytes = answer.pop("peak_bytes")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"
