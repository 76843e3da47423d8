"""A line of the log for each request: what it was, and what came of it; prompts only on request. Further lines tell
how far a long prompt is read.

Keys, headers and queries are in no line.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.untrusted.user_input import WITHHELD

LEFT_STATUS = 499  # nginx's; nobody is there to read it
SOCKET_STATUS = 101

_NAME = "reader_edge.note"  # in an ASGI scope
SLOW_S, AGAIN_S = 3.0, 10.0  # after which the log first tells how far a prompt is read, and between such lines
_MAX_MODEL, _MAX_PATH, _MAX_ERROR, _MAX_PROMPT = 100, 200, 500, 10_000  # characters
_COUNTS = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "accepted_prediction_tokens": "accepted_tokens",
}
_PROMPT_FIELDS = ("messages", "prompt", "input", "system", "instructions", "suffix", "prediction", "tools", "functions")
# From the first quotation mark or bracket that begins a word to the last that ends one: between them may be any.
_QUOTED = re.compile(r"""(?<!\w)['"({\[](?:.*['")}\]](?!\w)|.*)""", re.DOTALL)
_PLAIN = re.compile(r"[!-~]+")

_LOG = logging.getLogger("reader_edge.server.requests")


@dataclass(slots=True)
class RequestNote:
    """What the handlers of a request have found out about it. method, path: None where nobody could read them.

    logs_prompts: whether the line has the prompt. status: of the answer; where a stream broke off, what a whole
    answer would have had. usage: tells tokens, in OpenAI's words. progress: what the answer waits for, for heartbeats.
    """

    method: str | None = None
    path: str | None = None
    logs_prompts: bool = False
    model: str | None = None
    status: int | None = None
    usage: Callable[[], Mapping[str, Any]] | None = None
    progress: Callable[[], dict[str, object]] | None = None
    error: str | None = None
    prompt: str | None = None
    start_s: float = field(default_factory=time.perf_counter)

    def within(self, method: str) -> "RequestNote":
        """Of a request that comes over this one's connection."""
        return RequestNote(method, self.path, self.logs_prompts)

    def read(self, values: object) -> None:
        """Note what a body says."""
        if not isinstance(values, dict):
            return
        model = values.get("model") or values.get("name")
        self.model = model if isinstance(model, str) else None
        self.read_prompt(values)

    def read_prompt(self, values: Mapping[str, object]) -> None:
        """Note what is requested, where the log is to say it."""
        if self.logs_prompts:
            requested = {name: values[name] for name in _PROMPT_FIELDS if values.get(name) is not None}
            self.prompt = _cut(json.dumps(requested), _MAX_PROMPT)

    def refuse(self, status: int, sentence: str, public: str | None = None) -> None:
        """Note what a request is refused with, or what ends its answer. public: the sentence without the client's
        texts; None where it has none."""
        self.status = status
        self.error = sentence if public is None or self.logs_prompts else public

    def leave(self) -> None:
        """Note that the client has gone."""
        self.status, self.error = LEFT_STATUS, "The client left before the end."

    def break_off(self, error: BaseException) -> None:
        """Note what kept the server from an answer. Sentences of bugs may say anything, and stay with their traces."""
        if not isinstance(error, Exception):
            self.refuse(503, "The server was stopped.")
        elif (status := getattr(error, "status", None)) is not None:  # an ApiError's
            self.refuse(status, str(error), getattr(error, "public", None))
        else:
            self.refuse(500, "The server failed to answer; another line says why.")

    def write(self) -> None:
        """Have the line in the log."""
        if self.status is None:
            self.leave()
        assert self.status is not None
        level = logging.INFO if self.status < 400 else logging.ERROR if self.status == 500 else logging.WARNING
        if _LOG.isEnabledFor(level):
            fields = self._fields()
            _LOG.log(level, "%s", _line(fields), extra={"fields": fields})

    def write_progress(self) -> None:
        """Have a line that tells how far the prompt is read, while it is."""
        reading = {} if self.progress is None else self.progress().get("prompt_progress")
        if isinstance(reading, dict) and reading:
            left_ms = reading.get("left_ms")
            left = "" if left_ms is None else f", about {max(1, round(left_ms / 1000))} s left"
            words = f"{reading['processed']} of {reading['total']} tokens of the prompt read{left}"
            _LOG.info("%s %s ... %s", self.method, _word(_cut(self.path, _MAX_PATH)), words)

    def _fields(self) -> dict[str, object]:
        usage: Mapping[str, Any] = {} if self.usage is None else self.usage()
        counts = {**usage, **usage.get("completion_tokens_details", {})}
        known: dict[str, object | None] = {
            "method": self.method,
            "path": _cut(self.path, _MAX_PATH),
            "status": self.status,
            "model": _cut(self.model, _MAX_MODEL),
            **{name: counts[key] for key, name in _COUNTS.items() if counts.get("prompt_tokens")},
            "seconds": round(time.perf_counter() - self.start_s, 4),
            "error": _cut(self.error, _MAX_ERROR),
            "prompt": self.prompt,
        }
        return {name: value for name, value in known.items() if value is not None}


class RequestLog:
    """An ASGI application before another one. refusal: what that one refuses all requests with, if it does."""

    def __init__(self, app: ASGIApp, logs_prompts: bool = False, refusal: str | None = None) -> None:
        self._app = app
        self._logs_prompts = logs_prompts
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        note = RequestNote(scope.get("method", "WEBSOCKET"), scope["path"], self._logs_prompts, error=self._refusal)
        scope[_NAME] = note

        async def send_noted(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                note.status = message["status"]
            elif message["type"] == "websocket.accept":
                note.status = SOCKET_STATUS
            await send(message)

        watching = asyncio.ensure_future(_watch(note))
        try:
            await self._app(scope, receive, send_noted)
        except BaseException as error:
            note.break_off(error)
            raise
        finally:
            watching.cancel()
            note.write()


async def _watch(note: RequestNote) -> None:
    await asyncio.sleep(SLOW_S)
    while True:
        note.write_progress()
        await asyncio.sleep(AGAIN_S)


def note_of(scope: Scope) -> RequestNote:
    """The note of a request; one that nobody reads where none is kept."""
    note = scope.get(_NAME)
    return note if isinstance(note, RequestNote) else RequestNote()


def _line(fields: Mapping[str, object]) -> str:
    """For eyes; texts that could be read as more than one are in quotes, control characters spelt out."""
    head = [_word(fields.get(name, "-")) for name in ("method", "path", "status")]
    rest = [f"{name}={_word(value)}" for name, value in fields.items() if name not in ("method", "path", "status")]
    return " ".join([*head, *rest])


def _word(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) and not {'"', "\\", "="} & set(text) else json.dumps(text)


def _cut(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else f"{text[:most]}..."


def public_sentence(error: ReaderEdgeError) -> str:
    """A refusal without the client's texts: by its `public` text, else without what it quotes and brackets."""
    return _QUOTED.sub(WITHHELD, str(error)) if error.public is None else error.public
