"""The export compares how conversations are rendered: texts and token ids, here and by transformers."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from reader_edge_export.checks.chat_check import ChatCheck, check_chats, conversations
from reader_edge_export.sources.tokenizer import special_tokens_of, text_tokenizer, write_tokenizer
from reader_edge_runtime.machine.bounded_process import run_bounded
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOOL_TEMPLATE_NAME
from reader_edge_runtime.text.conversation import Conversation
from tests.runtime.text.text_cases import byte_level_tokenizer

CHATML = """{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}
{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}
{{ c.function.name }}{{ a if a is string else a | tojson }}{% endfor %}{{ m.reasoning_content }}{{ eos_token }}
{% endfor %}{{ tools | tojson }}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


ENDS = {"bos_token": "<end>", "eos_token": "<end>", "pad_token": "a"}


def tokenizer_with(template: Any, **special: Any) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), **special)
    tokenizer.chat_template = template
    return tokenizer


def check(template: Any) -> ChatCheck:
    tokenizer = tokenizer_with(template, **ENDS)
    return check_chats(tokenizer, text_tokenizer(tokenizer))


def test_a_template_that_takes_all_is_rendered_as_transformers_does() -> None:
    compared = check(CHATML + "{# system, developer #}")
    assert compared == ChatCheck(num_compared=len(dict(conversations())))
    assert compared.num_compared >= 30


def test_what_a_template_does_not_take_is_told() -> None:
    compared = check("{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}")
    assert {"tools", "tools and a system message"} <= set(compared.suited)
    assert compared.different == ()
    assert "a call with null content" in compared.mended
    assert "a question" not in compared.different
    assert compared.figures() == {
        "chats_compared": float(compared.num_compared),
        "chats_suited": float(len(compared.suited)),
        "chats_different": 0.0,
    }


def test_what_differs_for_no_reason_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.dumps([["something else", [1]] for _ in conversations()]).encode()
    monkeypatch.setattr("reader_edge_export.checks.chat_check.run_bounded", lambda work: expected)
    compared = check("{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}")
    assert "a question" in compared.different
    assert "tools" in compared.suited
    assert not set(compared.different) & set(compared.suited)


def test_a_template_that_transformers_cannot_finish_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.checks.chat_check.run_bounded", partial(run_bounded, cpu_s=0.5))
    only_there = "{% if 'TemplateDict' in (dict | string) %}"
    assert check(only_there + "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endif %}") == ChatCheck()


def test_without_a_template_nothing_is_compared() -> None:
    assert check(None) == ChatCheck()
    assert ChatCheck().figures() == {}


def test_special_tokens_are_the_tokenizers_own() -> None:
    tokenizer = tokenizer_with("x", **ENDS)
    assert special_tokens_of(tokenizer) == ENDS
    tokenizer.add_special_tokens({"additional_special_tokens": ["<x>"]})
    assert set(special_tokens_of(tokenizer)) == set(ENDS)  # a list has no name


TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def test_a_template_of_its_own_for_tools_is_kept_and_taken(tmp_path: Path) -> None:
    tokenizer = tokenizer_with({"default": "plain", "tool_use": "{{ tools | length }} tools", "rag": "x"})
    write_tokenizer(tokenizer, tmp_path)
    assert (tmp_path / CHAT_TEMPLATE_NAME).read_text() == "plain"
    assert (tmp_path / TOOL_TEMPLATE_NAME).read_text() == "{{ tools | length }} tools"
    text, user = text_tokenizer(tokenizer), {"role": "user", "content": "x"}
    assert text.render_chat(Conversation([user])) == "plain"
    assert text.render_chat(Conversation([user], [TOOL])) == "1 tools"
    compared = check_chats(tokenizer, text)
    assert (compared.suited, compared.different) == ((), ())


def test_templates_without_a_default_are_told_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="none is called 'default': 'rag' is taken"):
        write_tokenizer(tokenizer_with({"rag": "x"}), tmp_path)
    assert (tmp_path / CHAT_TEMPLATE_NAME).read_text() == "x"
