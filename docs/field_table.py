"""The table of HTTP fields, made from the classes of the contract."""

import json
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from reader_edge.server.endpoints import OPENAI_ENDPOINTS
from reader_edge.server.schema import words_of

_NAMES = {path: "chats" if "/chat/" in path else path.rpartition("/")[2] for path in OPENAI_ENDPOINTS}


def field_table() -> str:
    """Lines of Markdown, by endpoints: fields in use, then those that are ignored, then those of a single value."""
    places: dict[tuple[str, str], list[str]] = {}  # of a field and what it may be
    for path, endpoint in OPENAI_ENDPOINTS.items():
        kind: Any = inspect.type_info(endpoint.body_type)
        for field in kind.fields:
            places.setdefault((field.encode_name, _words(field)), []).append(_NAMES[path])
    lines = ["| field | endpoints | value |", "|---|---|---|"]
    for where in sorted({tuple(each) for each in places.values()}, key=_rank):
        rows = {name: words for (name, words), found in places.items() if tuple(found) == where}
        lines += [f"| {names} | {_listed(where)} | {words} |" for names, words in _merged(rows)]
    return "\n".join(lines)


def _rank(where: tuple[str, ...]) -> tuple[int, list[int]]:
    """Fields of all endpoints come first, then those of two, then those of one."""
    order = list(_NAMES.values())
    return -len(where), [order.index(name) for name in where]


def _listed(where: tuple[str, ...]) -> str:
    return "all" if len(where) == len(_NAMES) else ", ".join(where)


def _merged(rows: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Fields in use have a row each, the others one for all that are taken alike."""
    others: dict[str, list[str]] = {}
    for name, words in rows.items():
        if words.startswith("accepted"):
            others.setdefault(words, []).append(f"`{name}`")
        else:
            yield f"`{name}`", words
    for words, names in sorted(others.items()):
        yield ", ".join(sorted(names)), words


def _words(field: inspect.Field) -> str:
    extra = getattr(field.type, "extra", None) or {}
    if extra.get("is_ignored"):
        return "accepted and ignored"
    if extra.get("is_unsupported"):
        values = " or ".join(f"`{value}`" for value in _neutral(field.type, extra))
        return f"accepted only as {values}"
    return words_of(field.type).replace("|", "/")


def _neutral(info: inspect.Type, extra: dict[str, Any]) -> list[str]:
    """The values that ask for nothing, as JSON."""
    match info:
        case inspect.Metadata():
            return _neutral(info.type, extra)
        case inspect.UnionType():
            return [value for each in info.types for value in _neutral(each, extra)]
        case inspect.LiteralType():
            return [json.dumps(value) for value in info.values]
        case inspect.NoneType():
            return ["null"]
        case inspect.FloatType():
            return [f"{info.ge:g}"]
        case inspect.BoolType():
            return [json.dumps(extra["only"])]
        case inspect.VarTupleType() if info.max_length == 0:
            return ["[]"]
        case inspect.VarTupleType():
            return [f"[{value}]" for value in _neutral(info.item_type, extra)]
    raise ValueError(f"no single value is known of {info}")
