"""The grammar of an answer that must be calls of declared tools, or may be."""

import json
import re
from typing import Any

from reader_edge.server.api_error import ApiError
from reader_edge.server.structured_outputs import check_depth
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import Grammar
from reader_edge_runtime.text.call_form import CallForm

_SPACES = {"item_separator": ", ", "key_separator": ": "}  # as models have seen calls

Json = dict[str, Any]


def tool_grammar(use: ToolUse, form: CallForm, answer: Grammar | None) -> Grammar | None:
    """What the answer must be, where it must be anything.

    answer: what it must be where it is no call, None for any text. Raises ApiError and ConfigError.
    """
    if not use.tools or not (use.is_required or use.is_strict or answer):
        return answer
    calls = [tool["function"] for tool in use.tools if tool["function"]["name"] in use.names]
    rules = [_start(use, form, answer), f"call: {' | '.join(f'call{number}' for number in range(len(calls)))}"]
    for number, function in enumerate(calls):
        head = f'{{"name": "{function["name"]}", "{form.arguments}": '
        rules.append(f"call{number}: {json.dumps(head)} arguments{number} " + json.dumps("}" + form.end))
        rules.append(f"arguments{number}: %json {json.dumps(_arguments_schema(function))}")
    asked = ", ".join(repr(function["name"]) for function in calls)
    return Grammar("lark", "\n".join(rules), f"grammar of the parameters of {asked}")


def _start(use: ToolUse, form: CallForm, answer: Grammar | None) -> str:
    """The rule of the whole answer. Without tags before calls, one call is all of it."""
    begin, is_parallel = json.dumps(form.begin), use.is_parallel and bool(form.begin)
    calls = f"{begin} call" + (f" ({json.dumps(chr(10) + form.begin)} call)*" if is_parallel else "")
    calls = calls if form.begin else "call"
    if use.is_required:
        return f"start: {calls}"
    if answer is not None:
        if answer.kind != "json_schema":
            raise ApiError(400, "Beside 'tools' an answer can be any text or JSON: leave the other form out.", "tools")
        return f"start: {calls} | answer\nanswer: %json {_compact(answer.text)}"
    if not form.begin:
        return "start: call | TEXT\nTEXT: /([^{\\[\\s](?s:.*))?/"
    tag = re.escape(form.begin.strip())
    rules = (
        f"start: TEXT | (HEAD call){'+' if is_parallel else ''} TEXT?",
        f"HEAD: /(?s:.*){tag}\\n/ & ~/(?s:.*){tag}(?s:.+){tag}(?s:.*)/",
        f"TEXT: /(?s:.*)/ & ~/(?s:.*){tag}(?s:.*)/",
    )
    return "\n".join(rules)


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


def _arguments_schema(function: Json) -> Json:
    """Raises ApiError."""
    schema = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    check_depth(schema, f"The schema of the parameters of '{function['name']}'", "tools")
    options = _SPACES | {"whitespace_flexible": False, "lenient": function.get("strict") is not True}
    return {**schema, "x-guidance": options}
