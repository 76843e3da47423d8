"""What templates find around them: member by member what transformers 5 gives them (`chat_template_utils.py`)."""

from typing import Any

import pytest

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Conversation
from tests.runtime.text.templates import template


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
