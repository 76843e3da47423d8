"""The grammar of an answer that must be calls of declared tools, or may be."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from reader_edge.server.api_error import ApiError
from reader_edge.server.forms.structured_outputs import check_depth
from reader_edge_runtime import Grammar
from reader_edge_runtime.generation_config import MAX_GRAMMAR
from reader_edge_runtime.text.calls.argument_kinds import argument_of, is_text, kinds_of, listed
from reader_edge_runtime.text.calls.call_form import CallForm, Notation
from reader_edge_runtime.text.calls.held_calls import call_head, call_tail
from reader_edge_runtime.text.calls.tool_use import ToolUse

_SPACES = {"item_separator": ", ", "key_separator": ": "}  # as models have seen calls
_SHARED_TOKENS = ("<|channel|>",)  # which begin other parts of an answer, too
_OF_TEXTS = ("format", "maxLength", "minLength", "pattern", "anyOf", "oneOf")  # what a schema can ask of a text

Json = dict[str, Any]

_NO_ARGUMENTS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_grammar(use: ToolUse, form: CallForm, answer: Grammar | None) -> Grammar | None:
    """What the answer must be, where it must be anything.

    answer: what it must be where it is no call, None for any text. Raises ApiError and ConfigError.
    """
    if not use.tools or not (use.is_required or use.is_strict or answer):
        return answer
    if form.notation in (Notation.PYTHON, Notation.BRACES):
        raise ApiError(
            400,
            "This model writes calls in a notation that no grammar holds here: leave 'strict', 'response_format' and "
            "the like out, and 'tool_choice' at 'auto' or 'none'.",
            "tools",
        )
    calls = [tool["function"] for tool in use.tools if tool["function"]["name"] in use.names]
    names = ", ".join(repr(function["name"]) for function in calls)
    rest = f"has more than {MAX_GRAMMAR} characters: shorten their schemas, or give fewer tools."
    rules, left, left_out = [], MAX_GRAMMAR, dict[str, None]()
    for rule in chain([_start(use, form, answer)], _calls(calls, form, left_out)):
        rules.append(rule)
        left -= len(rule) + 1
        if left < 0:  # before the rest is written
            raise ApiError(
                400,
                f"The grammar of the parameters of {names:.200} {rest}",
                "tools",
                public=f"The grammar of the parameters of 'tools' {rest}",
            )
    return Grammar("lark", "\n".join(rules), f"grammar of the parameters of {names}", left_out=tuple(left_out))


def held_arguments(use: ToolUse, form: CallForm) -> dict[str, Grammar]:
    """What holds the arguments of each function that may be called, as whole JSON, by its name.

    Without those whose texts are written without quotes, in which not all of a schema that is not strict is held.
    """
    grammars = {}
    for function in (tool["function"] for tool in use.tools if tool["function"]["name"] in use.names):
        is_strict = function.get("strict") is True
        if is_strict or form.notation not in (Notation.XML, Notation.KEYS):
            text = _followed(function.get("parameters") or _NO_ARGUMENTS, is_strict)
            grammars[function["name"]] = Grammar("json_schema", text, f"parameters of {function['name']!r}")
    return grammars


def _calls(calls: Sequence[Json], form: CallForm, left_out: dict[str, None]) -> Iterator[str]:
    """The rules of calls of these functions. left_out: gets what they do not hold. Raises ApiError."""
    yield f"call: {' | '.join(f'call{number}' for number in range(len(calls)))}"
    for number, function in enumerate(calls):
        head = _spelled(call_head(form, function["name"]).removeprefix(form.begin), form)
        yield f"call{number}: {head} arguments{number} {_spelled(call_tail(form), form)}"
        yield from _arguments(f"arguments{number}", function, form, left_out)


def _start(use: ToolUse, form: CallForm, answer: Grammar | None) -> str:
    """The rule of the whole answer. Without tags before calls, one call is all of it."""
    lead, is_parallel = form.opening + form.begin, use.is_parallel and bool(form.tag) and form.joint is not None
    more = f"({_spelled((form.joint or '') + form.begin, form)} call)*" if is_parallel else ""
    calls = f"{_spelled(lead, form)} call {more} {_spelled(form.closing, form)}"
    if use.is_required:
        return f"start: {calls}"
    if answer is not None:
        if answer.kind != "json_schema":
            raise ApiError(400, "Beside 'tools' an answer can be any text or JSON: leave the other form out.", "tools")
        return f"start: {calls} | answer\nanswer: %json {_compact(answer.text)}"
    if not form.tag:
        return "start: call | TEXT\nTEXT: /([^{\\[\\s](?s:.*))?/"
    rest = f"call {more} {_spelled(form.closing, form)}" if form.opening else "call"
    repeats = "*" if is_parallel and not form.opening else "?"
    first_tag, end = next(pair for pair in form.tags if form.tag.startswith(pair[0]))
    special = next((token_id for text, token_id in form.special_tokens if lead.startswith(text)), None)
    if special is not None:
        return _behind_token(f"{_spelled(lead, form)} {rest}", repeats, special, bool(end), form)
    tag = _escaped(first_tag)
    rules = (
        f"start: TEXT | (HEAD {rest}){'+' if repeats == '*' else ''}{' TEXT?' if end else ''}",
        f"HEAD: /(?s:.*){_escaped(lead)}/ & ~/(?s:.*){tag}(?s:.*){tag}(?s:.*)/",
        f"TEXT: /(?s:.*)/ & ~/(?s:.*){tag}(?s:.*)/",
    )
    return "\n".join(rules)


def _behind_token(calls: str, repeats: str, tag_id: int, has_end: bool, form: CallForm) -> str:
    """The rule of a text with calls behind a special token, with any other special tokens. Raises ApiError.

    has_end: whether calls have an end of their own. Without one, a text behind a call could not be told from it.
    """
    tag = next(text for text, token_id in form.special_tokens if token_id == tag_id)
    if tag in _SHARED_TOKENS:
        raise ApiError(
            400,
            "This model begins thoughts, answers and calls with the same token, so calls cannot be "
            "'strict' where an answer may be a text: leave 'strict' out, or set 'tool_choice' to 'required'.",
            "tools",
        )
    others = _ranges(token_id for _, token_id in form.special_tokens if token_id != tag_id)
    rules = [
        f"start: free ({calls}{' free' if has_end else ''}){repeats}",
        "free: TEXT" + (f" (<[{others}]> TEXT)*" if others else ""),
    ]
    return "\n".join([*rules, f"TEXT: /(?s:.*)/ & ~/(?s:.*){_escaped(tag)}(?s:.*)/"])


def _spelled(text: str, form: CallForm) -> str:
    """A text as a grammar's terms: special tokens by their ids, for they are no text."""
    ids = {token: token_id for token, token_id in form.special_tokens if token in text}
    longest = sorted(ids, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest))})", text) if longest else [text]
    return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts if part)


def _ranges(token_ids: Iterable[int]) -> str:
    """Ids as llguidance lists them: 1-3,7."""
    runs = groupby(enumerate(sorted(token_ids)), lambda pair: pair[1] - pair[0])
    members = [[token_id for _, token_id in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" for run in members)


def _escaped(text: str) -> str:
    """A text in a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


def _compact(text: str) -> str:
    """A schema that llguidance is to follow without free spaces, as `Grammar` has it. Raises ApiError."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    options = (schema.get("x-guidance") or {}) if isinstance(schema, dict) else None
    if not isinstance(options, dict):
        raise ApiError(400, "Beside 'tools' the schema of the answer must be a sound JSON object: change it.", "tools")
    return json.dumps(schema | {"x-guidance": options | {"whitespace_flexible": False}})


def _arguments(rule: str, function: Json, form: CallForm, left_out: dict[str, None]) -> Iterator[str]:
    """The rules of a function's arguments. Raises ApiError."""
    schema = function.get("parameters") or _NO_ARGUMENTS
    check_depth(schema, f"The schema of the parameters of '{function['name']}'", "tools")
    is_strict = function.get("strict") is True
    if form.notation not in (Notation.XML, Notation.KEYS):
        yield f"{rule}: %json {_followed(schema, is_strict)}"
        return
    before, between, behind = form.parameter
    (described, *_) = kinds_of(schema, schema) or [{}]  # which may stand behind a reference
    properties, required = described.get("properties"), described.get("required")
    needed = {key for key in required if isinstance(key, str)} if isinstance(required, list) else set()
    names = []
    for number, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        name = f"{rule}p{number}"
        names.append(name if key in needed else f"{name}?")
        yield f"{name}: {_spelled(before + key + between, form)} {name}v"
        kinds = kinds_of(argument_of(schema, key), schema)
        unheld = [keyword for keyword in _OF_TEXTS if any(is_text(kind) and keyword in kind for kind in kinds)]
        if unheld and is_strict:
            raise ApiError(
                400,
                f"This model writes texts without quotes, where '{unheld[0]}' cannot be held: leave it out.",
                "tools",
            )
        left_out.update({f"'{keyword}' of texts without quotes": None for keyword in unheld})
        yield from _value(f"{name}v", value, kinds, schema, behind, is_strict)
    yield f"{rule}: {' '.join(names) or json.dumps('')}"


def _value(
    rule: str, schema: object, kinds: Sequence[Mapping[str, Any]], root: Json, behind: str, is_strict: bool
) -> Iterator[str]:
    """A value that is written as it is where it is a text, as JSON otherwise, with what stands behind it."""
    if any(map(is_text, kinds)):  # whatever else it may be is written as some text
        yield f"{rule}[suffix={json.dumps(behind)}]: /(?s:.*)/"
        return
    texts = [value for kind in kinds for value in listed(kind) or () if isinstance(value, str)]
    if not texts:
        described = schema if isinstance(schema, dict) else {}
        yield f"{rule}: %json {_followed(_with_definitions(described, root), is_strict)} {json.dumps(behind)}"
        return
    words = [json.dumps(text, ensure_ascii=False) for text in texts]
    others = [kind for kind in map(_without_texts, kinds) if kind is not None]
    if others:
        words.append(f"{rule}o")
        rest = _with_definitions({"anyOf": others}, root)
        yield f"{rule}o: %json {_followed(rest, is_strict)}"
    yield f"{rule}: ({' | '.join(words)}) {json.dumps(behind)}"


def _with_definitions(schema: Json, root: Json) -> Json:
    """A schema with those definitions that it refers to, directly or not."""
    found: Json = {name: {} for name in ("$defs", "definitions")}
    left: list[object] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            left += part.values()
            place, _, name = str(part.get("$ref", "")).removeprefix("#/").partition("/")
            name = name.partition("/")[0].replace("~1", "/").replace("~0", "~")
            definitions = root.get(place) if place in found else None
            if isinstance(definitions, dict) and name in definitions and name not in found[place]:
                found[place][name] = definitions[name]
                left.append(definitions[name])
    return {name: definitions for name, definitions in found.items() if definitions} | schema


def _without_texts(kind: Mapping[str, Any]) -> Json | None:
    """A kind of value without the texts that it lists; None where it lists nothing else."""
    values = listed(kind)
    if values is None:
        return dict(kind)
    left = [value for value in values if not isinstance(value, str)]
    return {"enum": left} if left else None


def _followed(schema: Json, is_strict: bool) -> str:
    options = _SPACES | {"whitespace_flexible": False, "lenient": not is_strict}
    return json.dumps({**schema, "x-guidance": options})
