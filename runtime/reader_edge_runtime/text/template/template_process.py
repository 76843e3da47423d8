"""The process that renders chat templates, bounded in time and memory, as its owner sees it."""

import json
import threading

from reader_edge_runtime.machine.bounded_process import BoundedProcess, BoundedProgram

TOO_MUCH = "it takes more time or memory than a template may"


class TemplateProcess:
    """Started with the first request, and again after one that it did not survive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._program = BoundedProgram("reader_edge_runtime.text.template.template_worker")
        self._process: BoundedProcess | None = None

    def ask(self, request: str) -> dict[str, str]:
        """A "text", or a "refusal" or an "error" in words. request: JSON, as the worker reads it."""
        with self._lock:
            try:
                process = self._process = self._process or self._program.start()
            except (OSError, EOFError) as error:  # no memory for one, or no Python in a program that it is a part of
                reason = getattr(error, "strerror", None) or "it ends at once"
                return {"error": f"no process to render it can be started ({reason})"}
            try:
                process.channel.send(request.encode())
                reply: dict[str, str] = json.loads(process.channel.receive())
            except BaseException as error:
                self._process = None  # whatever cut the exchange short, Ctrl-C too: the next must not read its reply
                process.close()
                if not isinstance(error, OSError | EOFError | ValueError):
                    raise
                return {"error": TOO_MUCH}
            return reply
