"""What the server understands and answers, as an OpenAPI document, which programs read to try or to call it."""

from collections.abc import Mapping

import reader_edge
from reader_edge.server.openapi_bodies import TEXT, RequestBodies, Schema, list_of, maybe, object_of
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime.package.manifest import Manifest

_REFUSALS: Mapping[int, str] = {
    400: "A field is malformed, out of its range, or not supported.",
    401: "The API key is missing or wrong.",
    403: "A page of another site asked.",
    404: "There is no such model.",
    408: "The body took too long to come.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests wait already.",
    431: "The headers are too large.",
    503: "The server is shutting down.",
    504: "The answer took longer than it may.",
}


def openapi_document(settings: ServerSettings, manifest: Manifest) -> Schema:
    """The document of a server of this model. Its limits are the server's own."""
    asked = RequestBodies(settings, manifest)
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "reader-edge", "version": reader_edge.__version__},
        "paths": {
            "/v1/chat/completions": {"post": _answering("chat", asked.chat(), _CHAT_ANSWER)},
            "/v1/completions": {"post": _answering("completions", asked.completions(), _COMPLETION_ANSWER)},
            "/v1/responses": {"post": _answering("responses", asked.responses(), _RESPONSE)},
            "/v1/models": {"get": _telling("models", list_of(_MODEL))},
            "/health": {"get": _telling("health", object_of(status={"const": "ok"}))},
        },
        "components": {"schemas": {"Error": _ERROR}},
    }
    if settings.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _answering(name: str, body: Schema, answer: Schema) -> Schema:
    """An operation that takes a body: its answer comes whole or as events."""
    whole = {"application/json": {"schema": answer}, "text/event-stream": {"schema": object_of(data=TEXT)}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The answer.", "content": whole}, **_refusals(_REFUSALS)},
    }


def _telling(name: str, answer: Schema) -> Schema:
    told = {"description": "What is asked for.", "content": {"application/json": {"schema": answer}}}
    statuses = {status: _REFUSALS[status] for status in (401, 403, 431)}
    return {"operationId": name, "responses": {"200": told, **_refusals(statuses)}}


def _refusals(statuses: Mapping[int, str]) -> Schema:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {str(status): {"description": text, "content": content} for status, text in statuses.items()}


_COUNT: Schema = {"type": "integer", "minimum": 0}
_USAGE = object_of(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_ERROR = object_of(
    error=object_of(message=TEXT, type=TEXT, param=maybe("string"), code=maybe("string")),
)
_MODEL = object_of(id=TEXT, object={"const": "model"}, created=_COUNT, owned_by=TEXT)


def _answer(kind: str, **choice: Schema) -> Schema:
    choices = object_of(index=_COUNT, finish_reason=TEXT, **choice)
    return object_of(
        id=TEXT,
        object={"const": kind},
        created=_COUNT,
        model=TEXT,
        choices={"type": "array", "items": choices, "minItems": 1},
        usage=_USAGE,
    )


_CHAT_ANSWER = _answer("chat.completion", message=object_of(role={"const": "assistant"}, content=maybe("string")))
_RESPONSE = object_of(
    id=TEXT, object={"const": "response"}, created_at=_COUNT, status=TEXT, model=TEXT, output={"type": "array"}
)
_COMPLETION_ANSWER = _answer("text_completion", text=TEXT)
