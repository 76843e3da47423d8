"""The grammar of an answer that must be calls of declared tools, or may be."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from time import thread_time
from typing import Any

from reader_edge.server.api_error import ApiError
from reader_edge.server.argument_rules import NO_ARGUMENTS, argument_rules, followed, spelled
from reader_edge_runtime import Grammar
from reader_edge_runtime.generation_config import MAX_GRAMMAR
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.streaming_calls import call_prefix, call_suffix
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

_MAX_S = 2.0  # as grammars may take until they can be followed
_SHARED_TOKENS = ("<|channel|>",)  # which begin other parts of an answer, too

Json = dict[str, Any]


def tool_grammar(use: ToolUse, syntax: CallSyntax, answer: Grammar | None) -> Grammar | None:
    """What the answer must be, where it must be anything.

    answer: what it must be where it is no call, None for any text. Raises ApiError and ConfigError.
    """
    if not use.tools or not (use.is_required or use.is_strict or answer):
        return answer
    if syntax.notation in (Notation.PYTHON, Notation.BRACES):
        raise ApiError(
            400,
            "This model writes calls in a notation that no grammar holds here: leave 'strict', 'response_format' and "
            "the like out, and 'tool_choice' at 'auto' or 'none'.",
            "tools",
        )
    calls = [tool["function"] for tool in use.tools if tool["function"]["name"] in use.names]
    names = ", ".join(repr(function["name"]) for function in calls)
    rules, left, left_out, end = [], MAX_GRAMMAR, dict[str, None](), thread_time() + _MAX_S
    for rule in chain([_start(use, syntax, answer)], _calls(calls, syntax, left_out)):
        rules.append(rule)
        left -= len(rule) + 1
        if left < 0 or thread_time() > end:  # before the rest is written
            reason = f"has more than {MAX_GRAMMAR} characters" if left < 0 else f"takes more than {_MAX_S:g} s to make"
            rest = f"{reason}: shorten their schemas, or give fewer tools."
            public = f"The grammar of the parameters of 'tools' {rest}"
            raise ApiError(400, f"The grammar of the parameters of {names:.200} {rest}", "tools", public=public)
    return Grammar("tool_calls", "\n".join(rules), f"grammar of the parameters of {names}", left_out=tuple(left_out))


def enforced_arguments(use: ToolUse, syntax: CallSyntax) -> dict[str, Grammar]:
    """The grammar of the arguments of each function that may be called, as whole JSON, by its name.

    Without those whose texts are written without quotes, in which not all of a schema that is not strict is held, and
    those that are too long for a grammar.
    """
    grammars = {}
    for function in (tool["function"] for tool in use.tools if tool["function"]["name"] in use.names):
        is_strict = function.get("strict") is True
        if is_strict or syntax.notation not in (Notation.XML, Notation.KEYS):
            text = followed(function.get("parameters") or NO_ARGUMENTS, is_strict)
            if len(text) <= MAX_GRAMMAR:
                grammars[function["name"]] = Grammar("json_schema", text, f"parameters of {function['name']!r}")
    return grammars


def _calls(calls: Sequence[Json], syntax: CallSyntax, left_out: dict[str, None]) -> Iterator[str]:
    """The rules of calls of these functions. left_out: gets what they do not hold. Raises ApiError."""
    yield f"call: {' | '.join(f'call{number}' for number in range(len(calls)))}"
    for number, function in enumerate(calls):
        prefix = spelled(call_prefix(syntax, function["name"]).removeprefix(syntax.begin), syntax)
        yield f"call{number}: {prefix} arguments{number} {spelled(call_suffix(syntax), syntax)}"
        yield from argument_rules(f"arguments{number}", function, syntax, left_out)


def _start(use: ToolUse, syntax: CallSyntax, answer: Grammar | None) -> str:
    """The rule of the whole answer. Without tags before calls, one call is all of it."""
    lead, is_parallel = syntax.opening + syntax.begin, use.is_parallel and bool(syntax.tag) and syntax.joint is not None
    more = f"({spelled((syntax.joint or '') + syntax.begin, syntax)} call)*" if is_parallel else ""
    calls = f"{spelled(lead, syntax)} call {more} {spelled(syntax.closing, syntax)}"
    if use.is_required:
        return f"start: {calls}"
    if answer is not None:
        if answer.kind != "json_schema":
            raise ApiError(400, "Beside 'tools' an answer can be any text or JSON: leave the other form out.", "tools")
        return f"start: {calls} | answer\nanswer: %json {_compact(answer.text)}"
    if not syntax.tag and syntax.notation is Notation.NAMED:
        raise ApiError(
            400,
            "This model's calls begin as a text may, so they cannot be 'strict' where an answer may be a text: leave "
            "'strict' out, or set 'tool_choice' to 'required'.",
            "tools",
        )
    if not syntax.tag:
        return "start: call | TEXT\nTEXT: /([^{\\[\\s](?s:.*))?/"
    rest = f"call {more} {spelled(syntax.closing, syntax)}" if syntax.opening else "call"
    repeats = "*" if is_parallel and not syntax.opening else "?"
    first_tag, end = next(pair for pair in syntax.tags if syntax.tag.startswith(pair[0]))
    special = next((token_id for text, token_id in syntax.special_tokens if lead.startswith(text)), None)
    if special is not None:
        return _behind_token(f"{spelled(lead, syntax)} {rest}", repeats, special, bool(end), syntax)
    tag = _escaped(first_tag)
    rules = (
        f"start: TEXT | (HEAD {rest}){'+' if repeats == '*' else ''}{' TEXT?' if end else ''}",
        f"HEAD: /(?s:.*){_escaped(lead)}/ & ~/(?s:.*){tag}(?s:.*){tag}(?s:.*)/",
        f"TEXT: /(?s:.*)/ & ~/(?s:.*){tag}(?s:.*)/",
    )
    return "\n".join(rules)


def _behind_token(calls: str, repeats: str, tag_id: int, has_end: bool, syntax: CallSyntax) -> str:
    """The rule of a text with calls behind a special token, with any other special tokens. Raises ApiError.

    has_end: whether calls have an end of their own. Without one, a text behind a call could not be kept apart.
    """
    tag = next(text for text, token_id in syntax.special_tokens if token_id == tag_id)
    if tag in _SHARED_TOKENS:
        raise ApiError(
            400,
            "This model begins thoughts, answers and calls with the same token, so calls cannot be "
            "'strict' where an answer may be a text: leave 'strict' out, or set 'tool_choice' to 'required'.",
            "tools",
        )
    others = _ranges(token_id for _, token_id in syntax.special_tokens if token_id != tag_id)
    rules = [
        f"start: free ({calls}{' free' if has_end else ''}){repeats}",
        "free: TEXT" + (f" (<[{others}]> TEXT)*" if others else ""),
    ]
    return "\n".join([*rules, f"TEXT: /(?s:.*)/ & ~/(?s:.*){_escaped(tag)}(?s:.*)/"])


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
