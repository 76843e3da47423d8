"""Requests that do not fit the classes of the contract, made from those classes: one for each object and field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import inspect

from reader_edge.server.endpoint import Endpoint
from reader_edge.server.endpoints import ANTHROPIC_ENDPOINTS, LLAMA_CPP_ENDPOINTS, OPENAI_ENDPOINTS

BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "demo", "prompt": "Hi"},
    "/v1/responses": {"model": "demo", "input": "Hi"},
}
OLLAMA_BODIES: Mapping[str, dict[str, Any]] = {
    "/api/chat": {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"model": "demo", "prompt": "Hi"},
}
ANTHROPIC_BODIES: Mapping[str, dict[str, Any]] = {
    path: {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]} for path in ANTHROPIC_ENDPOINTS
}
LLAMA_CPP_BODIES: Mapping[str, dict[str, Any]] = {
    "/infill": {"model": "demo", "input_prefix": "Hi", "input_suffix": "."},
    "/tokenize": {"model": "demo", "content": "Hi"},
    "/detokenize": {"model": "demo", "tokens": [1]},
}
READING_BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "demo", "input": "Hi"},
    **{path: {"model": "demo", "query": "Hi", "documents": ["Hi"]} for path in ("/v1/rerank", "/v2/rerank", "/rerank")},
    "/api/embed": {"model": "demo", "input": "Hi"},
    "/api/embeddings": {"model": "demo", "prompt": "Hi"},
}
_UNKNOWN = "made_up"


@dataclass(frozen=True)
class Case:
    """A body that is refused for the field at a place."""

    path: str
    place: str
    body: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.path}:{self.place}"


def all_cases(
    endpoints: Mapping[str, type[Endpoint[Any]]] = OPENAI_ENDPOINTS, bodies: Mapping[str, dict[str, Any]] = BODIES
) -> list[Case]:
    """For each object, however deep, an unknown field; for each field, a value of no type that it takes."""
    return [
        Case(path, place, bodies[path] | {_first(place): value})
        for path, endpoint in endpoints.items()
        for place, value in _mistakes(inspect.type_info(endpoint.body_type))
    ]


def is_unknown(case: Case) -> bool:
    """Whether the field at its place is one that no class has."""
    return case.place.rpartition(".")[2] == _UNKNOWN


def half_characters() -> list[Case]:
    """For each field, however deep, that takes a text or anything: half a character, alone and as a name."""
    return [
        *cases_of_text("\ud800"),
        *cases_of_text("\ud800", ANTHROPIC_ENDPOINTS, ANTHROPIC_BODIES),
        *cases_of_text("\ud800", LLAMA_CPP_ENDPOINTS, LLAMA_CPP_BODIES),
    ]


def cases_of_text(
    text: str,
    endpoints: Mapping[str, type[Endpoint[Any]]] = OPENAI_ENDPOINTS,
    bodies: Mapping[str, dict[str, Any]] = BODIES,
) -> list[Case]:
    """For each field, however deep, that takes a text or anything: this text, alone and as a name."""
    return [
        Case(path, place, bodies[path] | {_first(place): value})
        for path, endpoint in endpoints.items()
        for place, value in _replaced(inspect.type_info(endpoint.body_type), text)
    ]


def _replaced(kind: Any, text: str) -> Iterator[tuple[str, Any]]:
    for field in kind.fields:
        for each in _alternatives(field.type):
            if isinstance(each, inspect.StrType | inspect.AnyType | inspect.LiteralType):
                yield field.encode_name, text
            elif isinstance(each, inspect.DictType):
                yield field.encode_name, {text: {text: [text]}}
            elif isinstance(each, inspect.ListType | inspect.VarTupleType) and not list(_objects(each)):
                yield field.encode_name, [text]
        for inner, start in _objects(field.type):
            for place, value in _replaced(inner, text):
                replaced = _least(inner) | {_first(place): value}
                yield f"{field.encode_name}{start}.{place}", [replaced] if start else replaced


def _mistakes(kind: Any) -> Iterator[tuple[str, Any]]:
    """Mistakes within an object: the place, and the whole value of the object's field in which it is."""
    yield _UNKNOWN, 1
    for field in kind.fields:
        wrong = _wrong(field.type)
        if wrong is not None:
            yield field.encode_name, wrong[0]
        for inner, start in _objects(field.type):
            for place, value in _mistakes(inner):
                name = _first(place)
                mistaken = _least(inner) | {name: value}
                yield f"{field.encode_name}{start}.{place}", [mistaken] if start else mistaken


def _objects(kind: Any) -> Iterator[tuple[inspect.StructType, str]]:
    """The objects that a field may hold, and how their places begin: in a list with the first number."""
    for each in _alternatives(kind):
        if isinstance(each, inspect.StructType):
            yield each, ""
        elif isinstance(each, inspect.ListType | inspect.VarTupleType):
            yield from ((inner, "[0]") for inner, start in _objects(each.item_type) if not start)


def _least(kind: inspect.StructType) -> dict[str, Any]:
    """The fields that an object must have."""
    tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
    return tag | {field.encode_name: _right(field.type) for field in kind.fields if field.required}


def _right(kind: Any) -> Any:
    match _alternatives(kind)[0]:
        case inspect.StrType():
            return "x"
        case inspect.IntType(ge=least):
            return least
        case inspect.LiteralType(values=values):
            return "assistant" if "assistant" in values else values[0]
        case inspect.DictType():
            return {}
        case inspect.VarTupleType():
            return []
        case inspect.StructType() as inner:
            return _least(inner)
    raise AssertionError(kind)


def _wrong(kind: Any) -> list[Any] | None:
    """A value, in a list, that is of no type that the field takes; None where any is."""
    types = _alternatives(kind)
    if any(isinstance(each, inspect.AnyType) for each in types):
        return None
    is_number = any(isinstance(each, inspect.IntType | inspect.FloatType) for each in types)
    return [{"made": "up"}] if is_number else [7.5]


def _alternatives(kind: Any) -> list[Any]:
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [each for part in kind.types for each in _alternatives(part)]
    return [kind]


def _first(place: str) -> str:
    return place.partition(".")[0].partition("[")[0]
