"""A Python function as a tool that a model may call: its name, its docstring and its parameters as a JSON schema."""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.text.conversation import Tool
from reader_edge_runtime.untrusted.user_input import short_repr

Schema = dict[str, Any]

_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_LISTS, _OBJECTS = (list, Sequence, set, frozenset, tuple), (dict, Mapping)
# Google's sections and Sphinx's fields: what follows them is not the function's own description.
_SECTION = re.compile(r"^\s*(?:(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):\s*$|:\w+)", re.MULTILINE)
_ARGUMENTS = re.compile(r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*\n?|[ \t]*\n)*)", re.MULTILINE)
_GOOGLE = re.compile(r"^([ \t]+)(\w+)[ \t]*(?:\([^)\n]*\))?:[ \t]*(.*(?:\n\1[ \t]+.*)*)", re.MULTILINE)
_SPHINX = re.compile(r"^:param (?:[^:\n]* )?(\w+):[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def declared_tool(tool: Callable[..., Any] | Tool) -> Tool:
    """A tool as a `Conversation` has it: what is none yet is a function, or a function's description alone.

    The description of a function and of its parameters is taken from its docstring, in Google's form or Sphinx's.
    Raises ConfigError for a function that no JSON schema describes.
    """
    if isinstance(tool, Mapping):
        is_flat = "function" not in tool and "name" in tool
        return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} if is_flat else tool
    if not callable(tool) or isinstance(tool, type):
        raise ConfigError(f"A tool is {short_repr(tool)}, but must be a function, or a JSON object that describes one.")
    name = getattr(tool, "__name__", "")
    description, descriptions = _described(inspect.getdoc(tool) or "")
    parameters = _object(_parameters(tool, name), f"{name}()")
    for parameter, words in descriptions.items():
        if parameter in parameters["properties"]:
            parameters["properties"][parameter]["description"] = words
    head = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **head, "parameters": parameters}}


def _parameters(tool: Callable[..., Any], name: str) -> dict[str, tuple[Any, bool]]:
    """Each parameter's type, and whether a call must name it. Raises ConfigError for one that no call can name."""
    try:
        signature, hints = inspect.signature(tool), get_type_hints(tool, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"The parameters of {name}() cannot be read ({error}): give a JSON schema instead.") from None
    for each in signature.parameters.values():
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise ConfigError(f"A call names its arguments, so {name}() cannot have '{each}': give it a plain one.")
    return {
        each.name: (hints.get(each.name, Any), each.default is each.empty) for each in signature.parameters.values()
    }


def _object(fields: Mapping[str, tuple[Any, bool]], place: str, within: tuple[Any, ...] = ()) -> Schema:
    properties = {name: _schema(kind, f"{name!r} of {place}", within) for name, (kind, _) in fields.items()}
    required = [name for name, (_, is_required) in fields.items() if is_required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(kind: Any, place: str, within: tuple[Any, ...]) -> Schema:
    """The JSON schema of a type. Raises ConfigError for one that JSON does not have.

    place: what is of this type. within: the classes around it.
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        words = next((each for each in parts[1:] if isinstance(each, str)), None)
        return _schema(parts[0], place, within) | ({} if words is None else {"description": words})
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(part, place, within) for part in parts]}
    if origin is Literal:
        return _listed(parts, place)
    if origin in _LISTS and len({part for part in parts if part is not ...}) <= 1:
        return {"type": "array"} | ({"items": _schema(parts[0], place, within)} if parts else {})
    if origin in _OBJECTS:
        return {"type": "object"} | ({"additionalProperties": _schema(parts[1], place, within)} if parts else {})
    return _schema_of_class(kind, place, within)


def _schema_of_class(kind: Any, place: str, within: tuple[Any, ...]) -> Schema:
    if kind in within:
        raise ConfigError(f"The type of {place} holds itself: give a JSON schema instead.")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _listed([each.value for each in kind], place)
    if kind in (Any, object):
        return {}
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if callable(make := getattr(kind, "model_json_schema", None)):
        return dict(make())
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return _object(_fields(kind), kind.__name__, (*within, kind))
    words = getattr(kind, "__name__", None) or str(kind)
    raise ConfigError(f"The type of {place} is {words:.80}, which JSON has no word for: give a JSON schema instead.")


def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        marks = (Required, NotRequired)
        plain = {name: get_args(hint)[0] if get_origin(hint) in marks else hint for name, hint in hints.items()}
        return {name: (hint, name in kind.__required_keys__) for name, hint in plain.items()}
    missing = dataclasses.MISSING
    given = [each for each in dataclasses.fields(kind) if each.init]
    return {e.name: (hints[e.name], e.default is missing and e.default_factory is missing) for e in given}


def _listed(values: Sequence[Any], place: str) -> Schema:
    if not values or not all(type(value) in _NAMES for value in values):
        raise ConfigError(
            f"The values of {place} are {short_repr(values)}, but must be texts, numbers, truth values or None."
        )
    kinds = list(dict.fromkeys(_NAMES[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring's own words, and what it says of parameters."""
    section = _SECTION.search(doc)
    head = doc[: section.start()] if section else doc
    arguments = _ARGUMENTS.search(doc)
    found = [(name, words) for _, name, words in _GOOGLE.findall(arguments[1])] if arguments else []
    found += _SPHINX.findall(doc)
    return " ".join(head.split()), {name: " ".join(words.split()) for name, words in found}
