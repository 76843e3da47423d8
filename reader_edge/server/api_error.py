"""Errors of the API: refusals and failures in the shapes of OpenAI, Ollama and Anthropic."""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reader_edge.server.request_log import RequestNote, note_of, public_sentence
from reader_edge_runtime.errors import (
    BusyError,
    CapacityError,
    ChatTemplateError,
    ClosedError,
    ConfigError,
    InstallationError,
    PromptError,
    ReaderEdgeError,
    StageLostError,
)
from reader_edge_runtime.untrusted.user_input import short_repr, withheld

Value = TypeVar("Value")
Handler = Callable[[Request], Awaitable[Response]]
Interface = Literal["openai", "ollama", "anthropic"]

ANTHROPIC_HEADER = "anthropic-version"

_LOG = logging.getLogger(__name__)
_MAX_KNOWN = 8  # models that a refusal names
_PLAIN = "send a plain prompt to '/v1/completions', or with 'raw': true to '/api/generate'"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = _TYPES | {
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_REQUEST_ID = "request_id"


class ApiError(ReaderEdgeError):
    """A request that is answered with an error. param: the field at fault. code: for programs.

    public: the message without what it has of the client's texts, for the log; by default it has none.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, public: str | None = None
    ) -> None:
        super().__init__(message)
        self.public = message if public is None else public
        self.status = status
        self.param = param
        self.code = code

    @property
    def fields(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def anthropic_fields(self) -> dict[str, object]:
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        error = {"type": kind, "message": str(self)}
        return {"type": "error", "error": error, _REQUEST_ID: f"req_{secrets.token_hex(12)}"}

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def response(self, interface: Interface = "openai") -> Response:
        """interface: in whose words the client knows errors."""
        match interface:
            case "ollama":
                return _Refusal(self, {"error": str(self)})
            case "anthropic":
                return _Refusal(self, self.anthropic_fields)
        return _Refusal(self, self.fields)

    def note(self, note: RequestNote) -> None:
        """Have it in the log's line of a request."""
        note.refuse(self.status, str(self), self.public)


class _Refusal(Response):
    def __init__(self, error: ApiError, fields: dict[str, object]) -> None:
        # Where Anthropic's clients look for it.
        headers = {"request-id": str(fields[_REQUEST_ID])} if _REQUEST_ID in fields else {}
        # In ASCII: names from a request may hold halves of characters.
        super().__init__(json.dumps(fields), error.status, error.headers | headers, "application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._error.note(note_of(scope))
        await super().__call__(scope, receive, send)


def shown_json(value: object) -> str:
    """A wrong value in the sentence that refuses it."""
    return json.dumps(value) if isinstance(value, bool) else short_repr(value)


def withheld_json(value: object) -> str:
    """The same for the log."""
    return json.dumps(value) if isinstance(value, bool) else withheld(value)


def wrong_value(
    name: str, value: object, words: str, param: str, code: str | None = None, public_words: str | None = None
) -> ApiError:
    """What a value is refused with that is not what `words` say. name: its place. param: the field at fault.

    public_words: the words without what they have of the client's texts; by default they have none.
    """

    def text(value: str, words: str) -> str:
        return f"'{name}' {value}, but must be {words}."

    given, public = ("is missing",) * 2 if value is None else (f"is {shown_json(value)}", f"is {withheld_json(value)}")
    return ApiError(400, text(given, words), param, code, text(public, words if public_words is None else public_words))


def agreed(name: str, value: Value | None, other_name: str, other: Value | None) -> Value | None:
    """What two fields say that mean the same; None where neither says anything. Raises ApiError where they differ."""
    if value is None or other is None or value == other:
        return other if value is None else value

    def sentence(one: str, another: str) -> str:
        return f"'{name}' is {one} and '{other_name}' {another}, though they mean the same: leave one out."

    public = sentence(withheld_json(value), withheld_json(other))
    raise ApiError(400, sentence(shown_json(value), shown_json(other)), other_name, public=public)


def no_model(name: str, *known: str) -> ApiError:
    """known: the models and adapters that there are."""
    sentence = f"There is no model {name!r:.100} here: ask for {shown_names(known)}."
    return ApiError(404, sentence, "model", "model_not_found")


def shown_names(known: Sequence[str]) -> str:
    """The first few of them."""
    rest = f" or one of {len(known) - _MAX_KNOWN} others" if len(known) > _MAX_KNOWN else ""
    return " or ".join(map(repr, known[:_MAX_KNOWN])) + rest


def api_error(error: Exception) -> ApiError:
    """What a client gets of an error: whatever is no user's mistake stays in the log."""
    match error:
        case ApiError():
            return error
        case BusyError():
            return ApiError(429, str(error), code="queue_full")
        case ClosedError():
            return ApiError(503, "The server is shutting down.", code="shutting_down")
        case CapacityError():
            return ApiError(400, str(error), code="kv_cache_exceeded")
        case ChatTemplateError():  # whose file is nothing to strangers
            sentence = f"The model's chat template fails on these messages ({error.reason})"
            public = f"The model's chat template fails on these messages: {_PLAIN}."
            return ApiError(400, f"{sentence}: {_PLAIN}.", "messages", "chat_template_failed", public)
        case PromptError() | ConfigError():
            return ApiError(400, str(error), getattr(error, "place", None), public=public_sentence(error))
        case InstallationError():
            return ApiError(501, str(error))
        case RecursionError():
            return ApiError(400, "The body is nested too deeply: make it flatter.")
        case HTTPException():
            return ApiError(error.status_code, f"{error.detail}.")
    return _failure(error)


def _failure(error: Exception) -> ApiError:
    """Where boxes are, and what a bug looks like, is nothing to strangers."""
    if isinstance(error, StageLostError):
        _LOG.error("%s", error)
        return ApiError(503, "A box that has a part of the model is lost; the log says which.", code="stage_lost")
    _LOG.error("A request failed.", exc_info=error)
    return ApiError(500, "The server failed to answer; its log says why.", code="internal_error")


def refusing(status: int, sentence: str) -> Handler:
    """A route's handler that refuses every request."""

    async def refuse(request: Request) -> Response:
        return ApiError(status, sentence, code="unsupported_endpoint").response(interface_of(request))

    return refuse


async def error_response(request: Request, error: Exception) -> Response:
    """Starlette's handler for everything that a route raises."""
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        refusal = ApiError(error.status_code, f"There is no {request.method} {request.url.path:.100} here.")
        response = refusal.response(interface_of(request))
        response.headers.update(error.headers or {})  # which methods there are
        return response
    return api_error(error).response(interface_of(request))


def interface_of(request: HTTPConnection) -> Interface:
    """In whose words a client knows errors: Anthropic's clients send a header of their own, on any path."""
    return "anthropic" if ANTHROPIC_HEADER in request.headers else interface_of_path(request.url.path)


def interface_of_path(path: str) -> Interface:
    """Whose interface has a path; LM Studio's begin with a version."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    is_ollama = path.startswith("/api/") and not path.startswith(("/api/v0/", "/api/v1/"))
    return "ollama" if is_ollama else "openai"
