"""The process that renders chat templates, bounded in time and memory, as its owner sees it."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

TOO_MUCH = "it takes more time or memory than a template may"
_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateProcess:
    """Started with the first request, and again after one that it did not survive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None

    def ask(self, request: str) -> dict[str, str]:
        """A "text", or a "refusal" or an "error" in words. request: JSON in one line, as the worker reads it."""
        with self._lock:
            return self._ask(request)

    def _ask(self, request: str) -> dict[str, str]:
        try:
            worker = self._worker = self._worker or self._start()
        except OSError as error:  # no memory for a process, or no Python in a program that it is a part of
            return {"error": f"no process to render it can be started ({error.strerror})"}
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(request + "\n")
            worker.stdin.flush()
            reply: dict[str, str] = json.loads(worker.stdout.readline())
        except BaseException as error:
            self._worker = None  # whatever cut the exchange short, Ctrl-C too: the next one must not read its reply
            _end(worker)
            if not isinstance(error, OSError | ValueError):
                raise
            return {"error": TOO_MUCH}
        return reply

    def _start(self) -> "subprocess.Popen[str]":
        worker = subprocess.Popen(
            [sys.executable, "-P", "-S", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # Ctrl-C is for the answer, not for the worker
        )
        weakref.finalize(self, _end, worker)
        return worker


def _end(worker: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(BrokenPipeError), worker:  # of a request that it did not live to read
        worker.kill()
