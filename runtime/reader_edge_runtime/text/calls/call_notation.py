"""What stands in a call, read: names of tools and their arguments, whatever notation the model writes them in."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from reader_edge_runtime.text.calls.argument_kinds import is_text, kinds_of, takes
from reader_edge_runtime.text.calls.call_form import CallForm, Notation
from reader_edge_runtime.text.finite_json import finite, load_finite

Arguments = dict[str, Any]
Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of each tool

_MAX_PYTHON = 1 << 16  # characters that are parsed
_NAMED = re.compile(  # what stands before names is DeepSeek's, Kimi's and gpt-oss's
    r"(?:[^{]{0,60}?(?:tool.sep.>|functions\.))?(?P<name>[\w.-]+?)(?::\d+)?"
    r"(?=[^\w.-])[^{]{0,100}?(?P<arguments>\{.*\})\s*(?:```)?",
    re.DOTALL,
)
_FUNCTION = re.compile(
    r'<(?:function=|invoke name=)"?(?P<name>[^">\n]+)"?>(?P<body>.*?)</(?:function|invoke)>', re.DOTALL
)
_PARAMETER = re.compile(r'<parameter(?:=| name=)"?(?P<key>[^">\n]+)"?>\n?(?P<value>.*?)\n?</parameter>', re.DOTALL)
_KEY = re.compile(r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)
_BRACES = re.compile(r"\s*call:(?P<name>[\w.-]+)\s*(?P<arguments>\{.*\})\s*", re.DOTALL)
_TEXT_IN_BRACES = re.compile(r"""(<\|"\|>.*?<\|"\|>|<escape>.*?<escape>|"(?:\\.|[^"\\])*")""", re.DOTALL)
_BARE_KEY = re.compile(r"([A-Za-z_][\w.-]*)(\s*:)")
_LITERALS = {"true": True, "false": False, "null": None}


def read_calls(body: str, form: CallForm, schemas: Schemas) -> list[tuple[str, Arguments]]:
    """The calls in a text between a call's tags; none unless it is calls of known tools and nothing else.

    schemas: what tools there are, and the types of arguments that a notation does not tell.
    """
    try:
        is_object = form.notation is Notation.OBJECT or body.lstrip().startswith(("{", "[{"))
        if is_object and form.notation is not Notation.KEYED:
            calls = _objects(body)
        else:
            calls = _READERS[form.notation](body.strip().removeprefix(form.begin), schemas)
    except (ValueError, SyntaxError, RecursionError, MemoryError, LookupError, TypeError):
        return []
    return calls if all(name in schemas for name, _ in calls) else []


def is_open(body: str) -> bool:
    """Whether a text breaks off inside a string of JSON."""
    start = next((place for place in (body.find("{"), body.find("[")) if place >= 0), 0)
    try:
        json.loads(body[start:])
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        pass
    return False


def _objects(body: str) -> list[tuple[str, Arguments]]:
    """Objects of JSON or lists of them, one after the other."""
    decoder = json.JSONDecoder(parse_float=finite, parse_constant=finite)
    calls: list[tuple[str, Arguments]] = []
    place = len(body) - len(body.lstrip())
    while place < len(body):
        value, end = decoder.raw_decode(body, place)
        calls += [_of_object(each) for each in (value if isinstance(value, list) else [value])]
        place = len(body) - len(body[end:].lstrip(" \t\r\n;"))
    return calls


def _of_object(value: Any) -> tuple[str, Arguments]:
    name = value["name"] if "name" in value else value["tool_name"]
    arguments = value["arguments"] if "arguments" in value else value["parameters"]
    if isinstance(arguments, str):
        arguments = load_finite(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("no call")
    return name, arguments


def _keyed(body: str, schemas: Schemas) -> list[tuple[str, Arguments]]:
    value = load_finite(body)
    objects = value if isinstance(value, list) else [value]
    return [(name, _object(arguments)) for each in objects for name, arguments in _object(each).items()]


def _named(body: str, schemas: Schemas) -> list[tuple[str, Arguments]]:
    found = _NAMED.fullmatch(body)
    return [] if found is None else [(found["name"], _object(load_finite(found["arguments"])))]


def _xml(body: str, schemas: Schemas) -> list[tuple[str, Arguments]]:
    text = body if body.lstrip().startswith("<") else f"<function={body}</function>"
    calls = []
    for function in _FUNCTION.finditer(text):
        schema = schemas[function["name"]]
        if _PARAMETER.sub("", function["body"]).strip():
            return []
        found = _PARAMETER.finditer(function["body"])
        calls.append((function["name"], {each["key"]: _typed(each["value"], each["key"], schema) for each in found}))
    return calls if not _FUNCTION.sub("", text).strip() else []


def _keys(body: str, schemas: Schemas) -> list[tuple[str, Arguments]]:
    name = body.partition("<arg_key>")[0].strip()
    schema, pairs = schemas[name], body[body.index(name) + len(name) :]
    found = {each["key"].strip(): _typed(each["value"], each["key"].strip(), schema) for each in _KEY.finditer(pairs)}
    return [(name, found)] if not _KEY.sub("", pairs).strip() else []


def _python(body: str, schemas: Schemas) -> list[tuple[str, Arguments]]:
    text = body.strip()
    if len(text) > _MAX_PYTHON:
        return []
    if not text.startswith("["):
        text = "[" + ",".join(text.splitlines()) + "]"
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.List):
        return []
    calls = []
    for call in tree.elts:
        if not isinstance(call, ast.Call) or call.args:
            return []
        calls.append((ast.unparse(call.func), {_text(each.arg): _literal(each.value) for each in call.keywords}))
    return calls


def _literal(node: ast.expr | None) -> Any:
    """A value of JSON that an expression spells. Raises ValueError, also for a number that JSON cannot be read from."""
    match node:
        case ast.Constant(str() | bool() | None as value):
            return value
        case ast.Constant(int() | float() as value):
            return load_finite(repr(value))
        case ast.Name(name) if name in _LITERALS:
            return _LITERALS[name]
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
            return -load_finite(repr(value))
        case ast.List(elements) | ast.Tuple(elements):
            return [_literal(each) for each in elements]
        case ast.Dict(keys, values):
            return {_text(_literal(key)): _literal(each) for key, each in zip(keys, values, strict=True)}
    raise ValueError("no value of JSON")


def _braces(body: str, schemas: Schemas) -> list[tuple[str, Arguments]]:
    found = _BRACES.fullmatch(body)
    if found is None:
        return []
    parts = []
    for number, part in enumerate(_TEXT_IN_BRACES.split(found["arguments"])):
        if number % 2 == 0:
            parts.append(_BARE_KEY.sub(r'"\1"\2', part))
        else:
            mark = next((mark for mark in ('<|"|>', "<escape>") if part.startswith(mark)), "")
            parts.append(json.dumps(part[len(mark) : -len(mark)]) if mark else part)
    return [(found["name"], _object(load_finite("".join(parts))))]


_READERS = {
    Notation.KEYED: _keyed,
    Notation.NAMED: _named,
    Notation.XML: _xml,
    Notation.KEYS: _keys,
    Notation.PYTHON: _python,
    Notation.BRACES: _braces,
}


def _typed(text: str, key: str, parameters: Mapping[str, Any]) -> Any:
    """A value that is written as it is: JSON if it can be that, and a text where the schema wants that rather."""
    (described, *_) = kinds_of(parameters, parameters) or [{}]
    properties = described.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = kinds_of(schema, parameters)
    literal = text.strip()
    literal = {"True": "true", "False": "false", "None": "null"}.get(literal, literal)
    try:
        value = load_finite(literal)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str) and any(map(is_text, kinds)):
        return text
    is_wanted = not kinds or any(takes(kind, value) for kind in kinds)
    return value if is_wanted or not any(is_text(kind) or takes(kind, text) for kind in kinds) else text


def _object(value: Any) -> Arguments:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
