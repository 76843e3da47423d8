"""The OpenAPI document of a server, made from the classes of its requests."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import reader_edge
from reader_edge.server.api_error import Interface, interface_of_path
from reader_edge.server.endpoints import EVERY_ENDPOINT, READING_ENDPOINTS
from reader_edge.server.ignored_fields import RefusedFields
from reader_edge.server.schema import IGNORED
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime.package.manifest import Manifest

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}

_REFUSALS: Mapping[int, str] = {
    400: "A field is malformed, out of its range, or not supported.",
    401: "The API key is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "There is no such model.",
    408: "The body took too long to come.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests wait already.",
    431: "The headers are too large.",
    503: "The server is shutting down.",
    504: "The answer took longer than it may.",
}


def openapi_document(settings: ServerSettings, manifests: Sequence[Manifest], names: Sequence[str] = ()) -> Schema:
    """The document of a server of these models. Its limits are the server's own, and those of the largest vocabulary.

    names: of the models; by default that of the settings.
    """
    bodies, classes = msgspec.json.schema_components(
        [endpoint.body_type for endpoint in EVERY_ENDPOINT.values()], ref_template="#/components/schemas/{name}"
    )
    vocab_size = max(manifest.vocab_size for manifest in manifests)
    limits = _limits(settings, vocab_size, names or [settings.model_name])
    alternatives = _alternatives(classes)
    classes = {name: each if name in alternatives else _without_tag(each) for name, each in classes.items()}
    classes = {name: _without_effect(each, settings.refused_fields) for name, each in classes.items()}
    schemas = {name: _with_nulls(_with_limits(schema, limits)) for name, schema in classes.items()}
    paired = zip(EVERY_ENDPOINT, bodies, strict=True)
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "reader-edge", "version": reader_edge.__version__},
        "paths": {
            **{path: {"post": _post_operation(path, body, _ANSWERS[path])} for path, body in paired},
            "/v1/responses/{name}": {
                "get": _named_operation("response", _ANSWERS["/v1/responses"]),
                "delete": _named_operation("delete response", object_of(id=TEXT, deleted={"const": True})),
            },
            "/v1/models": {"get": _get_operation("models", list_of(_MODEL))},
            "/health": {"get": _get_operation("health", object_of(status={"const": "ok"}))},
        },
        "components": {"schemas": {**_ERRORS, **schemas}},
    }
    if settings.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _alternatives(schema: object) -> set[str]:
    """The names of classes that a tag distinguishes, from the others that may stand in their place."""
    if isinstance(schema, dict):
        tagged = schema.get("discriminator", {}).get("mapping", {}).values()
        names = {ref.rpartition("/")[2] for ref in tagged}
        return names.union(*map(_alternatives, schema.values()))
    return set().union(*map(_alternatives, schema)) if isinstance(schema, list) else set()


def _without_tag(schema: Schema) -> Schema:
    """The same, its tag optional: where no other class may stand, msgspec does without it, as some clients do."""
    tags = [name for name in schema["required"] if len(schema["properties"][name].get("enum", ())) == 1]
    return {**schema, "required": [name for name in schema["required"] if name not in tags]}


def _without_effect(schema: Schema, refused: RefusedFields) -> Schema:
    """The same with unknown fields, where they are not refused, and without ignored ones, where they are."""
    if refused != "all":
        return schema | {"additionalProperties": refused == "none"}
    ignored = [name for name, each in schema["properties"].items() if each.get("description") == IGNORED.description]
    return schema | {"properties": {name: each for name, each in schema["properties"].items() if name not in ignored}}


def _limits(settings: ServerSettings, vocab_size: int, names: Sequence[str]) -> Mapping[str, Schema]:
    """What fields may be that hangs on the server and its model, by their names."""
    token_id = {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}
    token_ids: Schema = {"type": "array", "items": token_id, "minItems": 1}
    prompt = {"anyOf": [{"type": "string", "minLength": 1}, token_ids]}
    prompts = {"type": "array", "items": prompt, "minItems": 1, "maxItems": settings.max_choices}
    return {
        "model": {"const": names[0]} if len(names) == 1 else {"enum": [*names]},
        "n": {"type": "integer", "minimum": 1, "maximum": settings.max_choices},
        "prompt": {"anyOf": [*prompt["anyOf"], prompts]},
        "stop_token_ids": {"type": "array", "items": token_id},
    }


def _with_limits(schema: Schema, limits: Mapping[str, Schema]) -> Schema:
    """The schema of a body, which names a model and whose other limits are the server's too."""
    properties = schema["properties"]
    if "model" not in properties:
        return schema
    is_free = {name: each.get("enum") is None for name, each in properties.items()}
    is_free["prompt"] = properties.get("prompt", {}).get("type") != "string"  # Ollama's is one text
    own = {name: limits[name] for name in properties if name in limits and is_free[name]}
    is_named = properties["model"].get("default", "") is not None
    required = [*(["model"] if is_named else []), *schema["required"]]
    condition = _LIKELY_TOKENS_COME_WITH_LOGPROBS if properties.get("logprobs", {}).get("type") == "boolean" else {}
    return {**schema, "properties": properties | own, "required": required, **condition}


def _with_nulls(schema: Schema) -> Schema:
    """The same with nulls for whatever may be left out."""
    properties = {
        name: each if name in schema["required"] or not each else {"anyOf": [each, {"type": "null"}]}
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": properties}


def _post_operation(path: str, body: Schema, answer: Schema) -> Schema:
    """An operation that takes a body: its answer comes whole, or as events or lines."""
    interface = interface_of_path(path)
    name, stream = path.removeprefix("/v1/").removeprefix("/"), {"application/x-ndjson": {"schema": answer}}
    if path in READING_ENDPOINTS:
        stream = {}
    elif interface != "ollama":
        stream = {"text/event-stream": {"schema": object_of(data=TEXT)}}
    whole = {"application/json": {"schema": answer}}
    refusals = _refusals(_REFUSALS, _ERROR_NAMES[interface])
    return {
        "operationId": path[1:] if f"/{name}" in EVERY_ENDPOINT.keys() - {path} else name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The answer.", "content": whole | stream}, **refusals},
    }


def _get_operation(name: str, answer: Schema) -> Schema:
    answered = {"description": "The answer.", "content": {"application/json": {"schema": answer}}}
    statuses = {status: _REFUSALS[status] for status in (401, 403, 431)}
    return {"operationId": name, "responses": {"200": answered, **_refusals(statuses, "Error")}}


def _named_operation(name: str, answer: Schema) -> Schema:
    """One on what a path names."""
    operation = _get_operation(name, answer)
    refusals = {
        400: "The server keeps no responses: `serve --keep-responses N`.",
        404: "No response of this id is kept for this key.",
    }
    return operation | {
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": TEXT}],
        "responses": operation["responses"] | _refusals(refusals, "Error"),
    }


def _refusals(statuses: Mapping[int, str], error: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    return {str(status): {"description": text, "content": content} for status, text in statuses.items()}


def maybe(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def object_of(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties]}


def list_of(items: Schema) -> Schema:
    return object_of(object={"const": "list"}, data={"type": "array", "items": items})


_LIKELY_TOKENS_COME_WITH_LOGPROBS: Schema = {
    "if": {"properties": {"top_logprobs": {"type": "integer", "minimum": 1}}, "required": ["top_logprobs"]},
    "then": {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]},
}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_USAGE = object_of(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_ERROR_NAMES: Mapping[Interface, str] = {"openai": "Error", "ollama": "OllamaError", "anthropic": "AnthropicError"}
_ERRORS = {
    "Error": object_of(error=object_of(message=TEXT, type=TEXT, param=maybe("string"), code=maybe("string"))),
    "OllamaError": object_of(error=TEXT),
    "AnthropicError": object_of(type={"const": "error"}, error=object_of(type=TEXT, message=TEXT), request_id=TEXT),
}
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


def _ollama_answer(**output: Schema) -> Schema:
    return object_of(model=TEXT, created_at=TEXT, done={"type": "boolean"}, **output)


_VECTOR: Schema = {"type": "array", "items": {"type": "number"}}
_READ = object_of(prompt_tokens=_COUNT, total_tokens=_COUNT)
_EMBEDDING = object_of(object={"const": "embedding"}, index=_COUNT, embedding={"anyOf": [_VECTOR, TEXT]})
_EMBEDDED = object_of(object={"const": "list"}, data={"type": "array", "items": _EMBEDDING}, model=TEXT, usage=_READ)
_SCORE = {"type": "number", "minimum": 0, "maximum": 1}
_RESULTS = {"type": "array", "items": object_of(index=_COUNT, relevance_score=_SCORE)}
_RANKED = object_of(id=TEXT, object={"const": "list"}, model=TEXT, results=_RESULTS, usage=_READ)
_ANSWERS: Mapping[str, Schema] = {
    "/v1/chat/completions": _answer(
        "chat.completion", message=object_of(role={"const": "assistant"}, content=maybe("string"))
    ),
    "/v1/completions": _answer("text_completion", text=TEXT),
    "/v1/responses": object_of(
        id=TEXT, object={"const": "response"}, created_at=_COUNT, status=TEXT, model=TEXT, output={"type": "array"}
    ),
    "/v1/messages": object_of(
        id=TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=TEXT,
        content={"type": "array"},
        stop_reason=TEXT,
        stop_sequence=maybe("string"),
        usage=object_of(
            input_tokens=_COUNT,
            cache_creation_input_tokens=_COUNT,
            cache_read_input_tokens=_COUNT,
            output_tokens=_COUNT,
        ),
    ),
    "/v1/messages/count_tokens": object_of(input_tokens=_COUNT),
    "/infill": object_of(content=TEXT, stop={"type": "boolean"}, model=TEXT),
    "/tokenize": object_of(tokens={"type": "array"}, count=_COUNT, max_model_len=_COUNT),
    "/detokenize": object_of(content=TEXT, prompt=TEXT),
    "/api/chat": _ollama_answer(message=object_of(role={"const": "assistant"}, content=TEXT)),
    "/api/generate": _ollama_answer(response=TEXT),
    "/v1/embeddings": _EMBEDDED,
    "/api/embed": object_of(model=TEXT, embeddings={"type": "array", "items": _VECTOR}),
    "/api/embeddings": object_of(embedding=_VECTOR),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), _RANKED),
}
