"""Templates render as with transformers 5: what they find around them, and those of published models."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template import template_worker
from tests.runtime.text.text_cases import OneDay, template


def render(source: str, **args: Any) -> str:
    return template(source).render(Conversation([{"role": "user", "content": "x"}], (), args))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("v | tojson", '{"b": "ü<&\'\\"", "a": [1, 2.5, true, null]}'),
        ("v | tojson(ensure_ascii=True)", '{"b": "\\u00fc<&\'\\"", "a": [1, 2.5, true, null]}'),
        ("v | tojson(sort_keys=True)", '{"a": [1, 2.5, true, null], "b": "ü<&\'\\""}'),
        ("v | tojson(separators=(',', ':'))", '{"b":"ü<&\'\\"","a":[1,2.5,true,null]}'),
        ("v.a | tojson(indent=1)", "[\n 1,\n 2.5,\n true,\n null\n]"),
        ("v.a | tojson(False, 1, (',', ': '), True)", "[\n 1,\n 2.5,\n true,\n null\n]"),
        ("'a' | tojson", '"a"'),
        ("5 | tojson ~ (none | tojson) ~ (true | tojson)", "5nulltrue"),
    ],
)
def test_tojson_takes_what_transformers_takes(expression: str, text: str) -> None:
    assert render("{{ " + expression + " }}", v={"b": "ü<&'\"", "a": [1, 2.5, True, None]}) == text


@pytest.mark.parametrize("mark", ["{% {} %}", "{%- {} -%}", "{%- {} %}"])
def test_what_a_generation_tag_encloses_is_rendered_as_it_is(mark: str) -> None:
    source = f"a {mark.replace('{}', 'generation')} b{{{{ 1 + 1 }}}} {mark.replace('{}', 'endgeneration')} c"
    assert render(source) == render(source.replace("endgeneration", "endif").replace("generation", "if true"))


def test_a_generation_tag_sees_the_variables_around_it() -> None:
    source = (
        "{% for m in messages %}{% set y = m.content %}{% generation %}{{ y }}{{ loop.index }}{% set z = 7 %}"
        "{% endgeneration %}{{ z is defined }}{% endfor %}"
    )
    assert render(source) == "x1False"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02345678"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("a\n    {% if true %}\nb\n    {% endif %}\nc\n", "a\nb\nc"),  # blocks take their own line with them
        ("a\n    {{ 1 }}\nb\n\n", "a\n    1\nb\n"),  # expressions do not; the last line end goes
        ("{#- a remark -#}  b", "b"),
        ("{{ '<b>&' }}", "<b>&"),  # nothing is escaped
        ("{{ missing }}|{{ missing | default('none') }}", "|none"),
        ("{{ missing is defined }} {{ none is none }} {{ messages[0].nothing is undefined }}", "False True True"),
        ("{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"),
        ("{{ 1.0 }} {{ true }} {{ [1, 'a'] }} {{ {'a': none} }}", "1.0 True [1, 'a'] {'a': None}"),
        ("{{ strftime_now('%Y') | int > 2000 }} {{ strftime_now(format='x') }}", "True x"),
        ("{{ dict(a=1) }} {{ dict([('b', 2)]) }} {{ dict.fromkeys(['c'], 3) }}", "{'a': 1} {'b': 2} {'c': 3}"),
        ("{% set n = namespace(a=1, self=2) %}{% set n.a = 3 %}{{ n.a }}{{ n.self }}", "32"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "a|b"),
        ("{{ lipsum(n=1, html=false) | length > 0 }}", "True"),
        ("{{ range(3) | list }}", "[0, 1, 2]"),
        ("{% macro m(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call m(1) %}2{% endcall %}", "<12>"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | length }}", "2"),
        ("{{ 'a b'.split(' ') }} {{ ' a '.strip() }} {{ 'abc'[::-1] }} {{ 'ab'.upper() }}", "['a', 'b'] a cba AB"),
        ("{{ {'b': 1, 'a': 2} | items | list }}", "[('b', 1), ('a', 2)]"),
        ("{{ {'b': 1, 'a': 2} | dictsort }}", "[('a', 2), ('b', 1)]"),
        ("{{ [1, 2, 3] | selectattr('x', 'undefined') | list | length }}", "3"),
        ("{{ 'x' in 'xyz' }} {{ [1] + [2] }} {{ messages[-1]['content'] }}", "True [1, 2] x"),
        ("{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}", "<s></s>False"),
        ("{{ add_generation_prompt }} {{ tools is none }} {{ documents is none }}", "True True True"),
    ],
)  # fmt: skip
def test_templates_render_as_with_transformers(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Never.') }}", "Never"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update({}) }}", "unsafe"),
        ("{{ dict.__class__.mro() }}", "unsafe"),
        ("{{ dict.mro() }}", "has no attribute 'mro'"),
        ("{% set n = namespace(_a=1) %}", "cannot hold '_a'"),
        ("{% set n = namespace() %}{% set n._a = 1 %}", "cannot hold '_a'"),
        ("{{ missing.member }}", "'missing' is undefined"),
        ("{{ 'a' + none }}", "can only concatenate str"),
        ("{{ missing | tojson }}", "not JSON serializable"),
        ("{% import 'x' as y %}", "no loader"),
        ("{% do messages %}", "unknown tag 'do'"),
        ("{% trans %}a{% endtrans %}", "unknown tag 'trans'"),
        ("{{ 1 | fromjson }}", "No filter named 'fromjson'"),
    ],
)
def test_templates_are_refused_as_with_transformers(source: str, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        render(source)


ROOT = Path(__file__).parents[4]
TEMPLATES = ROOT / "tests/data/templates"
SPECIAL_TOKENS = {name: f"<{name}>" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


# These know no tools, so that transformers leaves them out; here they are given to the model in words.
WITHOUT_TOOLS = {"deepseek-r1-distill", "deepseek-v3.1", "phi-3.5", "smollm2", "smollm3"}


# These write arguments as JSON: a text, which transformers hands on, would be quoted once more.
OF_OBJECTS = {
    "apertus",
    "deepseek-v3.1",
    "gpt-oss",
    "mimo-vl",
    "minimax-m1",
    "mistral-nemo",
    "mistral-small-3.2",
    "qwen2.5",
}
OF_OBJECTS |= {"apriel-1.5"}


# These look for a message of the system at the beginning alone, and leave others out.
WITHOUT_LATER_SYSTEM = {"bielik-3", "gpt-oss", "minimax-m1", "smollm3"}


# These show a list of parts as Python writes it.
WITHOUT_PARTS = {"gigachat-3.1"}


@cache
def chats() -> dict[str, Conversation]:
    lines = (ROOT / "export/reader_edge_export/texts/conversations.jsonl").read_text(encoding="utf-8").splitlines()
    fields = [json.loads(line) for line in lines]
    return {each.pop("name"): Conversation(**each) for each in fields}


@cache
def rendered_by_transformers() -> dict[str, dict[str, str | None]]:
    recorded: dict[str, dict[str, dict[str, str | None]]] = json.loads(
        gzip.decompress((TEMPLATES / "rendered.json.gz").read_bytes())
    )
    return recorded["rendered"]


def put_differently(name: str) -> set[str]:
    """Names of the conversations that are rendered differently on purpose."""
    different: set[str] = set()
    if name in WITHOUT_TOOLS:
        different |= {title for title, chat in chats().items() if chat.tools}
        different |= {title for title, chat in chats().items() if any("tool_calls" in each for each in chat.messages)}
    if name in OF_OBJECTS:
        different.add("a call whose arguments are a text")
    if "developer" not in (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"):  # the system's word, to most
        different |= {title for title, chat in chats().items() if chat.messages[0]["role"] == "developer"}
    if name in WITHOUT_LATER_SYSTEM:
        different |= {title for title in chats() if title.startswith("a system message ")}
    if name in WITHOUT_PARTS:
        different.add("texts in parts")
    return different


@pytest.mark.parametrize("name", NAMES)
def test_conversations_are_rendered_as_transformers_5_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_worker, "datetime", OneDay)
    made = template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), SPECIAL_TOKENS)
    expected = rendered_by_transformers()[name]
    assert list(expected) == list(chats())
    for title, chat in chats().items():
        if expected[title] is not None and made.render(chat) != expected[title]:
            assert title in put_differently(name)
            assert not made.takes(chat), title  # so an export tells that it is on purpose


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_rendered_with_every_template(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those too that transformers refuses, for null contents, arguments as texts or ids of another form."""
    monkeypatch.setattr(template_worker, "datetime", OneDay)
    made = template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), SPECIAL_TOKENS)
    for title, chat in chats().items():
        if any("tool_calls" in each for each in chat.messages):
            assert '"{\\"city' not in made.render(chat), title  # no arguments as a text within JSON


def test_there_are_twenty_templates_and_thirty_conversations() -> None:
    assert len(NAMES) >= 20
    assert len(chats()) >= 30
    assert set(rendered_by_transformers()) == set(NAMES)
