"""Calls as templates write them are read as they were meant, whatever their texts hold, whole and piece by piece."""

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.conftest import ROOT
from tests.reader_edge.server.forms.call_families import read_calls
from tests.runtime.text.text_cases import template

TEMPLATES = ROOT / "tests/data/templates"
QUESTION = "The question."

# The parts that write calls, of templates whose makers' licences are their own.
_EACH = "{{ QUESTION }}{% for message in messages if message.tool_calls %}"
_CALLS = "{% for call in message.tool_calls %}{% set f = call.function %}"
PARTS = {
    "lfm2.5": '{% macro written(v) %}{% if v is string %}{{ "\'" + v + "\'" }}{% elif v is mapping %}{{ v | tojson }}'
    "{% else %}{{ v | string }}{% endif %}{% endmacro %}" + _EACH + "<|tool_call_start|>[" + _CALLS + "{{ f.name }}("
    "{% for k, v in f.arguments.items() %}{{ k }}={{ written(v) }}{{ '' if loop.last else ', ' }}{% endfor %})"
    "{{ '' if loop.last else ', ' }}{% endfor %}]<|tool_call_end|>{% endfor %}{# tools #}",
    "olmo 3": _EACH + "<function_calls>" + _CALLS + "{{ f.name }}({% for k, v in f.arguments.items() %}"
    "{{ k ~ '=' ~ (v | tojson) }}{{ '' if loop.last else ', ' }}{% endfor %}){{ '' if loop.last else '\\n' }}"
    "{% endfor %}</function_calls>{% endfor %}{# tools #}",
    "gemma 4": '{% macro written(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is boolean %}'
    "{{ 'true' if v else 'false' }}{% elif v is mapping %}{{ '{' }}{% for k, each in v | dictsort %}"
    "{{ k }}:{{ written(each) }}{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}{% elif v is sequence %}["
    "{% for each in v %}{{ written(each) }}{{ '' if loop.last else ',' }}{% endfor %}]{% else %}{{ v }}"
    "{% endif %}{% endmacro %}"
    + _EACH
    + _CALLS
    + "<|tool_call>call:{{ f.name }}{{ written(f.arguments) }}<tool_call|>{% endfor %}{% endfor %}"
    "{# tools #}",
    "minimax m2": _EACH + "<minimax:tool_call>\n" + _CALLS + '<invoke name="{{ f.name }}">\n{% for k, v in '
    'f.arguments.items() %}<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}'
    "</invoke>\n{% endfor %}</minimax:tool_call>{% endfor %}{# tools #}",
    "minicpm 5": _EACH + _CALLS + '<function name="{{ f.name }}">{% for k, v in f.arguments.items() %}<param '
    "name=\"{{ k }}\">{% if v is string and ('<' in v or '\n' in v) %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}"
    "</param>{% endfor %}</function>{% endfor %}{% endfor %}{# tools #}",
    "hunyuan": _EACH + "<tool_calls>" + _CALLS + "<tool_call>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n"
    "```</tool_call>{{ '' if loop.last else '\\n' }}{% endfor %}</tool_calls>{% endfor %}{# tools #}",
}
_LEAVES_CALLS_OUT = {"granite-3.3"}
NAMES = sorted({path.stem for path in TEMPLATES.glob("*.jinja")} - _LEAVES_CALLS_OUT) + list(PARTS)

TYPES = {
    **{"from": "string", "None": "string", "file-path": "string", "text": "string"},
    **{
        "number": "integer",
        "ratio": "number",
        "class": "boolean",
        "nothing": "null",
        "list": "array",
        "more": "object",
    },
}
PARAMETERS = {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "d", "parameters": PARAMETERS}}
    for name in ("write", "files.write-all")
)
USE = ToolUse(TOOLS, ("write", "files.write-all"))

LINES = ("\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
TAGS = re.findall(
    r"\S+",
    "<tool_call> </tool_call> <function=x> </function> <parameter=x> </parameter> <arg_key> </arg_value> <tool_call|> "
    "[ARGS] </function_calls> <|tool_call_end|> <|tool_call_start|> [TOOL_CALLS] </tool_calls> <|call|> <escape> "
    "<|tools_suffix|> </seed:tool_call> </minimax:tool_call> </param> <![CDATA[ ]]>",
)
PIECES = [
    *LINES,
    *TAGS,
    *"'\"`\\()[]{}<>=,:;#|/ ",
    '"""',
    "'''",
    "\\n",
    "\\u2028",
    "\\'",
    "a",
    "x = 1",
    "\u00fc",
    "\U0001f600",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
OF_TYPE: dict[str, st.SearchStrategy[Any]] = {
    **{"string": TEXTS, "integer": st.integers(), "boolean": st.booleans(), "null": st.none()},
    **{"number": st.floats(allow_nan=False, allow_infinity=False), "array": st.lists(VALUES, max_size=2)},
    "object": st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2),
}
ARGUMENTS = st.fixed_dictionaries({}, optional={key: OF_TYPE[kind] for key, kind in TYPES.items()})
CALLS = st.lists(st.tuples(st.sampled_from(USE.names), ARGUMENTS), min_size=1, max_size=2)

# What a text cannot hold where it is written as it is: its own end, with what stands behind one.
_AMBIGUOUS = {
    Notation.XML: r"</param(eter)?>\s*(<parameter=|</function>|\Z)|</function>\s*(</|\Z)|\]\]>\s*</param>",
    Notation.KEYS: r"</arg_value>\s*(<arg_key>|</tool_call>|\Z)",
    Notation.PYTHON: r"'\s*,\s*[\w.-]+\s*=|'[\s,]*\)[\s,]*\]",
    Notation.BRACES: r"<escape>",
}


@cache
def made(name: str) -> ChatTemplate:
    source = PARTS[name] if name in PARTS else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return template(source.replace("{{ QUESTION }}", QUESTION))


def written(name: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls as a template writes them, with what stands around a message, but without what would end the answer."""
    output = [
        {"type": "function", "id": f"abcdefgh{number}", "function": {"name": called, "arguments": arguments}}
        for number, (called, arguments) in enumerate(calls)
    ]
    messages: list[Message] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": output},
    ]
    args = {"add_generation_prompt": False}
    text = made(name).render(Conversation(messages, TOOLS, args)).rpartition(QUESTION)[2]
    return text if made(name).call_syntax.tags[0][1] else text[: max(map(text.rfind, "}]")) + 1]


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_in(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts_in(each)]
    return [value] if isinstance(value, str) else []


def is_clear(form: CallSyntax, arguments: dict[str, Any]) -> bool:
    """Whether what a template makes of the arguments can be read in one way."""
    is_python = form.notation is Notation.PYTHON  # whose lists and objects have escapes
    verbatim = [v for v in arguments.values() if isinstance(v, str)] if is_python else texts_in(arguments)
    mark = _AMBIGUOUS.get(form.notation) if form.quote or not is_python else None
    has_own_lines = form.notation is Notation.XML and not form.parameter[1].endswith("\n")
    return not any(
        (mark is not None and re.search(mark, text)) or (has_own_lines and re.fullmatch(r"\n.*\n", text, re.DOTALL))
        for text in verbatim
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(calls=CALLS, size=st.integers(1, 9))
@example(calls=[("write", {"text": "".join(f"x = 1{line}" for line in LINES) + "y = 2"})], size=3)
def test_calls_are_read_as_templates_write(name: str, calls: list[tuple[str, dict[str, Any]]], size: int) -> None:
    form = made(name).call_syntax
    calls = calls if form.joint is not None else calls[:1]
    assume(all(is_clear(form, arguments) for _, arguments in calls))
    text = written(name, calls)
    for each in (size, len(text)):
        assert [(called, json.loads(output)) for called, output in read_calls(text, each, USE, form)[1]] == calls
