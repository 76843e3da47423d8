"""A server of a model in a process of its own, and what its clients see of one request."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

_START_S, _END_S = 180.0, 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One streamed answer as its client saw it, in seconds since its request; gaps: between pieces of text."""

    num_tokens: int
    first_s: float
    gaps: list[float] = field(default_factory=list)


class ServerProcess:
    """A command that serves OpenAI's interface at a port, which `{port}` stands for in its arguments."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        arguments = [part.format(port=self.port) for part in command]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                arguments, stdout=file, stderr=file, env=os.environ | dict(environment or {}), start_new_session=True
            )

    def __enter__(self) -> "ServerProcess":
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/v1/models", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise RuntimeError(f"A server did not start; its log ends with:\n{self._log.read_text()[-1000:]}")


async def watch(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Seen:
    """Ask a chat question, streamed, and look at the clock. Raises RuntimeError where the server refuses."""
    sent = body | {"stream": True, "stream_options": {"include_usage": True}}
    start = time.perf_counter()
    times: list[float] = []
    num_tokens = num_pieces = 0
    async with client.stream("POST", f"{url}/v1/chat/completions", json=sent) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode()[:500])
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[len("data: ") :])
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
            if any(choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
                num_pieces += 1
                times.append(time.perf_counter() - start)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # llama.cpp's server streams a token a piece and tells no usage.
    return Seen(num_tokens or num_pieces, times[0] if times else time.perf_counter() - start, gaps)


def reader_edge(model: Path, *options: str) -> list[str]:
    """The command of a server of ours."""
    return [sys.executable, "-m", "reader_edge", "serve", str(model), "--port", "{port}", "--name", "model", *options]


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        return port
