"""A server for a coding agent: the one that runs, or one that is started for as long as it is needed."""

import ctypes
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import InvalidURL
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import click

from reader_edge.launch.agents import MAX_TOKENS, NO_KEY, AgentModel
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.untrusted.user_input import short_repr

HOST = "127.0.0.1"
_MAX_ANSWER_S = 3_600  # on a slow machine, the first prompt alone may take minutes
_SUPPOSED_CONTEXT = 32_768  # of a server that does not tell it
_MAX_REPLY = 1 << 20
_WAIT_S = 5.0
_TICK_S = 0.1
_ENDING_S = 40.0  # in which `serve` gives running answers up
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_PLACE = re.compile(rf" at (http://{re.escape(HOST)}:\d+): ")  # where `serve` says that it listens


def served_model(url: str, name: str | None, key: str | None) -> AgentModel | None:
    """The model of this name behind a server, or its first one; None where no such server answers.

    Raises ConfigError for a server without this model, or one that refuses the key, and for a model without a chat
    template.
    """
    reply = _get(f"{url}/v1/models" + ("" if name is None else f"/{quote(name, safe='/:')}"), key)
    if reply is None:
        return None
    status, values = reply
    if status in (401, 403):
        raise ConfigError(f"The server at {url} wants a key: name the file that has it with --api-key-file.")
    if status == 404 and isinstance(values.get("error"), dict):
        raise ConfigError(
            f"The server at {url} has no model {short_repr(name)}: leave --model out, or name another --url."
        )
    found = values if name is not None else next(iter(values.get("data") or []), None)
    if status != 200 or not isinstance(found, dict) or not isinstance(found.get("id"), str):
        return None
    context, limit = found.get("max_model_len"), _answer_limit(url, found["id"], key)
    return AgentModel(
        url, found["id"], context if isinstance(context, int) else _SUPPOSED_CONTEXT, key or NO_KEY, limit
    )


def _answer_limit(url: str, name: str, key: str | None) -> int:
    """Most tokens of an answer. Raises ConfigError for a model without a chat template."""
    _, values = _get(f"{url}/props?model={quote(name, safe='')}", key) or (0, {})
    if values.get("chat_template") == "":
        raise ConfigError(
            f"{short_repr(name)} has no chat template, which agents need: take another model, or give it one by "
            "`reader-edge export MODEL PACKAGE --chat-template FILE`."
        )
    limit: Any = values
    for part in ("default_generation_settings", "params", "n_predict"):
        limit = limit.get(part) if isinstance(limit, dict) else None
    return limit if isinstance(limit, int) and limit > 0 else MAX_TOKENS


@contextmanager
def started_server(model: str, further: Sequence[str] = ()) -> Iterator[AgentModel]:
    """Serve a model on this machine within the context, to who has its key. Its log is shown until it answers.

    further: options of `serve`. Raises ProviderError where the server ends by itself, and what `served_model` does.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reader-edge-"))
        key, file = secrets.token_hex(32), Path(folder, "key")
        file.touch(0o600)
        file.write_text(key)
        options = ["--port", "0", "--api-key-file", str(file)]
        options += ["--max-tokens", str(MAX_TOKENS), "--max-seconds", str(_MAX_ANSWER_S)]
        options += ["--share-between-keys"]  # with the sessions before, whose keys were others, by a prefix cache
        with signals_held():
            process = subprocess.Popen(
                [sys.executable, "-m", "reader_edge", "serve", *options, *further, "--", model],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is the client's, which may mean no end by it
                preexec_fn=ending_with_parent(),
            )
            assert process.stderr is not None
            log = _Log(process.stderr)
            stack.callback(log.close)
            stack.callback(end, process, _ENDING_S)
        while (found := None if log.url is None else served_model(log.url, None, key)) is None:
            if process.poll() is not None:
                log.join(_WAIT_S)
                raise ProviderError(f"The server of '{model}' ended before it answered; its log is above.")
            time.sleep(_TICK_S)
        log.is_shown = False
        yield found
        if process.poll() is not None:
            raise ProviderError(f"The server of '{model}' ended before its client: {log.last}")


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals that end this process in order: one within Popen would leave a process that nobody ends."""
    held: list[int] = []
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)]
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda late, _: held.append(late))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in held:
        signal.raise_signal(number)


def end(process: subprocess.Popen[Any], wait_s: float) -> None:
    """End a process, in order if it takes no longer; a signal to this one cuts that short."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    finally:
        process.kill()
        process.wait()


def ending_with_parent() -> Callable[[], None] | None:
    """What a new process does first, so that Linux ends it with this one, whatever ends that."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def begin() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which `signals_held` handles
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return begin


class _Log(threading.Thread):
    """Takes a server's log, so that it never waits for a reader. is_shown: whether lines go to standard error.

    url: where the server listens, once it says so.
    """

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self.is_shown = True
        self.url: str | None = None
        self._stream = stream
        self._lines = deque[str](maxlen=1)
        self.start()

    @property
    def last(self) -> str:
        return self._lines[0] if self._lines else "it left no word."

    def close(self) -> None:
        """Once what writes it has ended."""
        self.join(_WAIT_S)
        self._stream.close()

    def run(self) -> None:
        for line in self._stream:
            self._lines.append(line.strip())
            if place := _PLACE.search(line):
                self.url = place[1]
            if self.is_shown:
                click.echo(line, nl=False, err=True)


def _get(url: str, key: str | None) -> tuple[int, dict[str, Any]] | None:
    """Status and JSON object of an answer; None where there is none."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy stands before this machine
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 (`launch` takes http and https alone)
        with opener.open(request, timeout=_WAIT_S) as reply:
            return reply.status, _object(reply.read(_MAX_REPLY))
    except urllib.error.HTTPError as error:
        return error.code, _object(error.read(_MAX_REPLY))
    except (OSError, ValueError, InvalidURL):
        return None


def _object(data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    return values if isinstance(values, dict) else {}
