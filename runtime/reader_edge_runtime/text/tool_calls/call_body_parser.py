"""Parses the body of a tool call into name and arguments, in whatever notation the model writes it (JSON, Python)."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from reader_edge_runtime.text.tool_calls.argument_kinds import (
    argument_of,
    arguments_of,
    is_text,
    kinds_of,
    roots_of,
    takes,
)
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.literal_reader import LiteralReader, UnclosedTextError
from reader_edge_runtime.text.tool_calls.python_calls import PythonCalls
from reader_edge_runtime.untrusted.untrusted_json import finite

Arguments = dict[str, Any]
Calls = list[tuple[str, Arguments]]
Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of each tool

# Line breaks in texts of JSON are let pass: they can mean nothing else.
_JSON = json.JSONDecoder(parse_float=finite, parse_constant=finite, strict=False)
_GAP = re.compile(r"[\s;]*")
_ESCAPE = re.compile(r"\\u[\da-fA-F]{4}")
_NAMED = re.compile(  # what stands before names is DeepSeek's, Kimi's and gpt-oss's
    r"(?:[^{]{0,60}?(?:tool.sep.>|functions\.))?(?P<name>[\w.-]+?)(?::\d+)?(?=[^\w.-])[^{]{0,100}?(?=\{)", re.DOTALL
)
_FUNCTION_BEGIN = "<(?:function=|function name=|(?:atem:)?invoke name=)"
_PARAMETER_BEGIN = "<(?:atem:)?param(?:eter)?(?:=| name=)"
_FUNCTION = re.compile(rf'\s*{_FUNCTION_BEGIN}"?(?P<name>[^">\n]+)"?>\s*')
_PARAMETER = re.compile(rf'{_PARAMETER_BEGIN}"?(?P<key>[^">\n]+)"?>')
_FUNCTION_END = rf"</(?:function|(?:atem:)?invoke)>\s*(?:\Z|(?={_FUNCTION_BEGIN}))"
_END_OF_FUNCTION = re.compile(_FUNCTION_END)
# Such a tag within a text ends nothing: another parameter or the function's end stands behind one that does.
_PARAMETER_END = re.compile(rf"</(?:atem:)?param(?:eter)?>(?=\s*(?:{_PARAMETER_BEGIN}|{_FUNCTION_END}))\s*")
# Without it a parameter ends with the last function, as vLLM reads it, and not in a later call.
_ANY_END = re.compile(rf"{_PARAMETER_END.pattern}|(?=</(?:function|(?:atem:)?invoke)>\s*\Z)")
_CDATA, _CDATA_END = re.compile(r"\s*<!\[CDATA\["), re.compile(rf"\]\]>\s*{_PARAMETER_END.pattern}")
_OWN_LINES = re.compile(
    r"\n.*\n", re.DOTALL
)  # on which models set values that their templates do not, as Seed-OSS does
_KEY = re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>", re.DOTALL)
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|\Z))\s*")
_FENCED = re.compile(r"```(?:python)?\s(.*)```", re.DOTALL)  # of MiniCPM3
_BRACES = re.compile(r"\s*call:(?P<name>[\w.-]+)\s*(?=\{)")
_MARKS = ('<|"|>', "<escape>")  # around texts in braces


def read_calls(body: str, syntax: CallSyntax, schemas: Schemas) -> list[tuple[str, Arguments]]:
    """The calls in a text between a call's tags; none unless it is calls of known tools and nothing else.

    schemas: what tools there are, and the types of arguments that a notation does not tell.
    """
    try:
        calls = _read(body, syntax, schemas)
    except (ValueError, RecursionError, LookupError, TypeError):
        return []
    return calls if all(name in schemas for name, _ in calls) else []


def is_open(body: str, syntax: CallSyntax, schemas: Schemas) -> bool:
    """Whether a text between tags breaks off inside a text of a call, of which the tag behind it is a part then."""
    try:
        _read(body, syntax, schemas)
    except UnclosedTextError:
        return True
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    return False


def _read(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    is_object = syntax.notation is Notation.OBJECT or body.lstrip().startswith(("{", "[{"))
    if is_object and syntax.notation is not Notation.KEYED:
        return [_of_object(each) for each in _values(body)]
    return _READERS[syntax.notation](body.strip().removeprefix(syntax.begin), syntax, schemas)


def _values(body: str) -> list[Any]:
    """Values of JSON one after the other, and those in lists."""
    reader, values = LiteralReader(body), list[Any]()
    reader.take(_GAP)
    while reader.place < len(body):
        value, reader.place = _value(body, reader.place)
        values += value if isinstance(value, list) else [value]
        reader.take(_GAP)
    return values


def _value(body: str, place: int) -> tuple[Any, int]:
    """A value of JSON that begins here, and where it ends."""
    try:
        return _JSON.raw_decode(body, place)
    except json.JSONDecodeError as error:
        # Python wants another character behind an escape of this kind.
        if error.msg.startswith("Unterminated string") or _ESCAPE.fullmatch(body[-6:]):
            raise UnclosedTextError from None
        raise


def _of_object(value: Any) -> tuple[str, Arguments]:
    name = value["name"] if "name" in value else value["tool_name"]
    arguments = value["arguments"] if "arguments" in value else value["parameters"]
    if isinstance(arguments, str):
        arguments = _JSON.decode(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("no call")
    return name, arguments


def _keyed(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    return [(name, _object(arguments)) for each in _values(body) for name, arguments in _object(each).items()]


def _named(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    found = _NAMED.match(body)
    if found is None:
        return []
    arguments, end = _value(body, found.end())
    return [(found["name"], _object(arguments))] if body[end:].strip() in ("", "```") else []


def _xml(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    is_begun = not body.startswith("<")  # its first tag is the one that stands around the call
    text = f"<function={body}</function>" if is_begun else body
    reader, calls = LiteralReader(text), Calls()
    while (function := reader.take(_FUNCTION)) is not None:
        schema, arguments = schemas[function["name"]], Arguments()
        while (parameter := reader.take(_PARAMETER)) is not None:
            if syntax.has_cdata and reader.take(_CDATA) is not None:
                value = _up_to(_CDATA_END, reader)
            else:
                value = _up_to(_PARAMETER_END if is_begun else _ANY_END, reader)
                if syntax.parameter[1].endswith("\n") or _OWN_LINES.fullmatch(value):
                    value = value.removeprefix("\n").removesuffix("\n")
            arguments[parameter["key"]] = _typed(value, parameter["key"], schema)
        if reader.take(_END_OF_FUNCTION) is None:
            return []
        calls.append((function["name"], arguments))
    return calls if reader.place == len(text) else []


def _keys(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    name = body.partition("<arg_key>")[0]
    reader, arguments = LiteralReader(body), Arguments()
    reader.place = len(name)
    while (key := reader.take(_KEY)) is not None:
        value = _up_to(_VALUE_END, reader)
        arguments[key["key"].strip()] = _typed(value, key["key"].strip(), schemas[name.strip()])
    return [(name.strip(), arguments)] if reader.place == len(body) else []


def _up_to(end: re.Pattern[str], reader: LiteralReader) -> str:
    """What stands before an end, which is behind the reader then."""
    start, found = reader.place, end.search(reader.text, reader.place)
    if found is None:
        raise UnclosedTextError
    reader.place = found.end()
    return reader.text[start : found.start()]


def _python(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    keys = {name: arguments_of(roots_of(schema)) for name, schema in schemas.items()}
    fenced = _FENCED.fullmatch(body)
    return PythonCalls(body if fenced is None else fenced[1], keys, syntax.quote).read()


def _braces(body: str, syntax: CallSyntax, schemas: Schemas) -> Calls:
    found = _BRACES.match(body)
    if found is None:
        return []
    reader = LiteralReader(body[found.end() :], _MARKS)
    arguments = _object(reader.value())
    reader.need("")
    return [(found["name"], arguments)] if reader.place == len(reader.text) else []


_READERS: Mapping[Notation, Callable[[str, CallSyntax, Schemas], Calls]] = {
    Notation.KEYED: _keyed,
    Notation.NAMED: _named,
    Notation.XML: _xml,
    Notation.KEYS: _keys,
    Notation.PYTHON: _python,
    Notation.BRACES: _braces,
}


def _typed(text: str, key: str, parameters: Mapping[str, Any]) -> Any:
    """A value that is written as it is: JSON if it can be that, and a text where the schema wants that rather."""
    kinds = kinds_of(argument_of(roots_of(parameters), key), parameters)
    try:
        value = _bare(text.strip())
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str) and any(map(is_text, kinds)):
        return text
    is_wanted = not kinds or any(takes(kind, value) for kind in kinds)
    return value if is_wanted or not any(is_text(kind) or takes(kind, text) for kind in kinds) else text


def _bare(text: str) -> Any:
    """A value without quotes: of JSON, or as Python writes it, which some templates do with all but texts."""
    try:
        return _JSON.decode(text)
    except ValueError:
        if not text.startswith(("[", "{", "True", "False", "None")):
            raise
    reader = LiteralReader(text)
    value = reader.value()
    if reader.place < len(text):
        raise ValueError("more than a value")
    return value


def _object(value: Any) -> Arguments:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value
