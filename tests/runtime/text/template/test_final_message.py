"""An answer that goes on with the last message: rendered as transformers' `continue_final_message` does."""

from typing import Any

import pytest

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.chat_template import ChatTemplate

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{{ '<assistant>' * add_generation_prompt }}"
TRIMMED = PLAIN.replace("m.content", "m.content | trim")
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}</>{% endfor %}"
QUESTION = {"role": "user", "content": "Why?"}


def render(source: str, content: Any, **args: Any) -> str:
    messages = [QUESTION, {"role": "assistant", "content": content}]
    return ChatTemplate(source, {}).render(Conversation(messages, (), args, continues_final_message=True))


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (PLAIN, "Because", "<user>Why?</><assistant>Because"),
        (PLAIN, "Because ", "<user>Why?</><assistant>Because "),
        (TRIMMED, "Because ", "<user>Why?</><assistant>Because"),
        (TRIMMED, "", "<user>Why?</><assistant>"),
        (PLAIN, "A CONTINUE_FINAL_MESSAGE_TAG b", "<user>Why?</><assistant>A CONTINUE_FINAL_MESSAGE_TAG b"),
    ],
)
def test_what_is_rendered_ends_with_the_last_text(source: str, content: str, text: str) -> None:
    assert render(source, content) == text


def test_the_last_part_is_continued() -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]
    assert render(PARTS, parts).endswith("<assistant>Onetwo")


@pytest.mark.parametrize(
    ("source", "content", "args", "words"),
    [
        (PARTS, [], {}, "has no text to continue"),
        ("{{ messages[0].content }}", "x", {}, "leaves the last message's text out"),
        (PLAIN, "x", {"add_generation_prompt": True}, "cannot both continue the last message and begin a new one"),
    ],
)
def test_what_cannot_be_continued_is_one_sentence(source: str, content: Any, args: Any, words: str) -> None:
    with pytest.raises(PromptError, match=rf"{words}.*\.$"):
        render(source, content, **args)


@pytest.mark.parametrize("names", [["messages"], ["tools"]])
def test_arguments_of_the_template_do_not_replace_the_conversation(names: list[str]) -> None:
    with pytest.raises(PromptError, match=f"template_args holds '{names[0]}'"):
        ChatTemplate(PLAIN, {}).render(Conversation([QUESTION], (), dict.fromkeys(names, ())))


def test_arguments_of_the_template_are_its_variables() -> None:
    source = "{{ enable_thinking }} {{ documents[0].title }} {{ bos_token }} {{ add_generation_prompt }}"
    args = {"enable_thinking": False, "documents": [{"title": "T"}], "bos_token": "<b>", "add_generation_prompt": False}
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(Conversation([QUESTION], (), args)) == "False T <b> False"
    with pytest.raises(PromptError, match="template_args is"):
        ChatTemplate(source, {}).render(Conversation([QUESTION], (), {1: 2}))  # type: ignore[dict-item]
