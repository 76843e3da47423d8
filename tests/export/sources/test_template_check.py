"""A chat template that cannot work is told of at the export."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from reader_edge_export.sources.tokenizer import check_chat_template, write_tokenizer
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.runtime.text.text_cases import byte_level_tokenizer


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('never') }}", "never"),
        ("{% if false %}x{% endif %}", "it makes 0 tokens of a short one"),
        ("{{ 'a b ' * 1000 }}", r"it makes \d+ tokens of a short one"),
    ],
)
def test_a_template_that_takes_no_messages_is_warned_of(source: str, words: str) -> None:
    with pytest.warns(UserWarning, match=rf"chat template takes no messages \(.*{words}.*\): ask it with --raw, or"):
        check_chat_template(Tokenizer(byte_level_tokenizer(), ChatTemplate(source, {})), 64)


@pytest.mark.parametrize("source", [None, "{{ messages[0]['content'] }}"])
def test_one_that_works_or_is_not_there_is_not_spoken_of(source: str | None) -> None:
    template = None if source is None else ChatTemplate(source, {})
    with warnings.catch_warnings(action="error"):
        check_chat_template(Tokenizer(byte_level_tokenizer(), template), 64)


@pytest.mark.parametrize("template", [5, {"default": 5}, "\ud800", "a" * (1 << 20) + "a"])
def test_what_no_package_can_have_as_a_template_is_refused(template: Any, tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer())
    tokenizer.chat_template = template
    with pytest.raises(TokenizerError, match=r"chat template (is|has) .*: remove it\.$"):
        write_tokenizer(tokenizer, tmp_path)
