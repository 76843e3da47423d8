"""The protocol of workers and runner: one JSON object a line, requests on stdin, answers on stdout.

A request names an operation and its arguments, {"do": "generate", "prompt": [...], "num_tokens": 64}; the answer holds
its result or {"error": "why"}. Standard library only: every peer's environment runs this file.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol


class PeerWorker(Protocol):
    """One loaded model of one runtime."""

    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        """Load a model for plain or for drafted decoding; returns {"versions": {package: version}}."""

    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        """Decode greedily; returns {"token_ids": [...], "first_s": seconds, "rest_s": seconds}.

        end_token_ids: those that end an answer, itself included; where there are none, it has num_tokens tokens.
        first_s: until the first token, prompt included. rest_s: for all tokens behind it.
        """

    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        """Time verification passes behind a prompt; returns {"seconds": {width: [seconds, ...]}}.

        A pass scores `width` tokens at once, with logits of all of them. What a prompt shares with the one before is
        kept from there: repeated it costs nothing, a longer one is extended, a shorter one is cut.
        """


class LogitsWorker(Protocol):
    """One loaded model that is compared with another, not timed."""

    def load(self, model: str, threads: int, max_length: int) -> dict[str, Any]:
        """Load a model for texts of up to `max_length` tokens; returns {}."""

    def logits(self, token_ids: list[int], out: str) -> dict[str, Any]:
        """Write the logits after each token of a text to `out`, float32 (N, V) in NumPy's format; returns {}."""


def shared_length(a: Iterable[int], b: Iterable[int]) -> int:
    """How many tokens two texts begin with alike."""
    length = 0
    for one, other in zip(a, b):  # noqa: B905  (one may end first)
        if one != other:
            break
        length += 1
    return length


def serve(worker: PeerWorker | LogitsWorker) -> None:
    """Answer requests until stdin ends. Whatever libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("do")
        try:
            answer = getattr(worker, operation)(**request)
        except Exception as error:  # the table names the reason, whatever a peer raises
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer.setdefault("peak_bytes", _peak_bytes())
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _peak_bytes() -> int:
    """Resident memory at its highest; getrusage's may be that of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
