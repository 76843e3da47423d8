"""llama.cpp's own server as a process: prompts as token ids, its clock, its drafting, its slots in files.

Standard library only: its environment runs this file.
"""

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

_START_S = 120


def peer_environment() -> dict[str, str]:
    """Variables without what the exporter's import sets for itself: with it llama.cpp takes 3.5 times as long."""
    return {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}


class Completion(NamedTuple):
    """An answer. first_s: from the question to its first token. rest_s: of all tokens behind it, by the server's clock.

    num_read: tokens of the prompt that its cache did not have.
    """

    token_ids: list[int]
    first_s: float
    rest_s: float
    num_read: int


class LlamaServer:
    """A server of one slot. drafting: a --spec-type; none where it is empty. Its cache is f16, as by default.

    options: further ones of its command line.
    """

    def __init__(
        self, binary: Path, model: str, context: int, threads: int, drafting: str = "", options: Sequence[str] = ()
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
        command = ["setpriv", "--pdeathsig", "KILL", str(binary), "--model", model]  # it ends with a killed worker
        command += ["--ctx-size", str(context), "--threads", str(threads)]
        command += ["--parallel", "1", "--port", str(self.port), "--slot-save-path", self.folder.name]
        command += ["--spec-type", drafting] if drafting else []
        command += options
        self._log = Path(self.folder.name, "log").open("w+")  # noqa: SIM115  (closed with the server)
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=peer_environment())
        self._wait()

    def __enter__(self) -> "LlamaServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and forget its files."""
        self.process.kill()
        self.process.wait()
        self._log.close()
        self.folder.cleanup()

    def complete(
        self, prompt: Sequence[int], num_tokens: int, has_ends: bool, forced: Sequence[int] = ()
    ) -> Completion:
        """Answer greedily. has_ends: whether an end token ends the answer. forced: what it must be, by a grammar."""
        body = {"prompt": list(prompt), "n_predict": num_tokens, "temperature": 0, "return_tokens": True}
        body["ignore_eos"] = not has_ends
        if forced:
            body["grammar"] = "root ::= " + " ".join(f"<[{token_id}]>" for token_id in forced)
        start = time.perf_counter()
        answer = self._ask("POST", "/completion", body)
        whole_s = time.perf_counter() - start
        timings = answer["timings"]
        rest_s = timings["predicted_ms"] / 1e3
        return Completion(answer["tokens"], whole_s - rest_s, rest_s, timings["prompt_n"])

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """What it answers to a chat of OpenAI's."""
        return self._ask("POST", "/v1/chat/completions", body)

    def log(self) -> str:
        """What it has written so far."""
        return Path(self._log.name).read_text(errors="replace")

    def peak_bytes(self) -> int:
        """Its resident memory at its highest so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    def save(self, file: Path) -> None:
        """Write the slot's cache."""
        self._ask("POST", "/slots/0?action=save", {"filename": "slot"})
        Path(self.folder.name, "slot").rename(file)

    def restore(self, file: Path) -> float:
        """Read the slot's cache; returns the seconds it took."""
        Path(self.folder.name, file.name).symlink_to(file)
        start = time.perf_counter()
        self._ask("POST", "/slots/0?action=restore", {"filename": file.name})
        return time.perf_counter() - start

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        read: dict[str, Any] = json.load(answer)
        connection.close()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"llama-server answered {answer.status}: {read}")
        return read

    def _wait(self) -> None:
        """Until it is ready. Raises RuntimeError where it ends instead."""
        for _ in range(10 * _START_S):
            try:
                self._ask("GET", "/health")
            except (OSError, RuntimeError):
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
            else:
                return
        self._log.seek(0)
        words = self._log.read()[-1000:]
        self.close()
        raise RuntimeError(f"llama-server did not start: {words}")
