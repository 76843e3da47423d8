"""Chat templates: models' own render exactly, hostile ones are one sentence in bounded time and memory."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from reader_edge_runtime.errors import ChatTemplateError, PromptError, TokenizerError
from reader_edge_runtime.machine.bounded_process import BoundedProgram
from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.template import chat_template
from reader_edge_runtime.text.template.chat_template import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": " ü🙂\n"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?"},
]


CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


CHATML_TEXT = (
    "<|im_start|>system\nBe <brief> & kind.<|im_end|>\n<|im_start|>user\n ü🙂\n<|im_end|>\n"
    "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
)


def render(source: str, messages: Sequence[Message] = MESSAGES) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(Conversation(messages))


def test_chatml_renders_exactly() -> None:
    assert render(CHATML) == CHATML_TEXT


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'a' * 3000000000 }}", "more memory"),
        ("{{ 'a' | center(3000000000) }}", "more memory"),
        ("{{ messages | tojson(indent=3000000000) }}", "more memory"),
        ("{{ [1] * 300000000 }}", "more memory"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "more (time or )?memory",  # which of them ends first depends on the machine
        ),
        ("{% for i in range(100000) %}{{ 'abcdefghij' * 1000 }}{% endfor %}", "more (time or )?memory"),
        ("{{ 'a' * 9000000 }}", "more than 8388608 characters"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            "more time or memory",
        ),
        (
            "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
            "more time or memory",
        ),
        ("{% for x in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{" + "(" * 5000 + ")" * 5000 + "}}", "recursion"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ '{'.format(1) }}", "Single '{'"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% bad", "unknown tag"),
        ("{{ strftime_now() }}", r"strftime_now\(\) missing 1 required positional argument: 'format'"),
        ("{{ raise_exception() }}", r"raise_exception\(\) missing 1 required"),
        ("{{ 1 | tojson(2, 3, 4, 5, 6) }}", r"tojson\(\) takes from 1 to 5"),
    ],
)
def test_a_hostile_or_broken_template_is_one_bounded_error(source: str, reason: str) -> None:
    with pytest.raises(
        ChatTemplateError, match=rf"^The model's chat template fails on these messages \(.*{reason}.*\): .*--raw"
    ):
        render(source)


@pytest.mark.parametrize(("words", "reason"), [("'no system role'", "no system role"), ("'x' * 100000", "x{300}")])
def test_a_template_refuses_in_its_own_words(words: str, reason: str) -> None:
    with pytest.raises(
        PromptError, match=rf"^The model's chat template refuses these messages: {reason}\.$"
    ) as refused:
        render(f"{{{{ raise_exception({words}) }}}}")
    assert refused.value.public == "The model's chat template refuses these messages."


def test_a_broken_template_s_file_and_line_are_named(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_text("{% for m in messages %}\n{{ m.content }}\n{% endfore %}", encoding="utf-8")
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate.open(path, {}).render(Conversation(MESSAGES))
    assert str(caught.value).startswith(f"The chat template '{path}' fails on these messages (line 3: ")


def test_a_conversation_outlives_what_kills_its_renderer() -> None:
    template = ChatTemplate("{{ messages[0].content * (messages | length) ** 20 }}", {})
    assert template.render(Conversation(MESSAGES[2:3])) == "Yes."
    with pytest.raises(PromptError, match="memory"):
        template.render(Conversation(MESSAGES))
    assert template.render(Conversation(MESSAGES[2:3])) == "Yes."
    process = template._template._process._process
    assert process is not None
    process.close()
    with pytest.raises(PromptError, match="time or memory"):
        template.render(Conversation(MESSAGES[2:3]))
    assert template.render(Conversation(MESSAGES[2:3])) == "Yes."


def test_an_interrupt_leaves_no_reply_for_the_next_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render(Conversation(MESSAGES[2:3])) == "Yes."
    with monkeypatch.context() as patch:
        patch.setattr("json.loads", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            template.render(Conversation(MESSAGES[2:3]))
    assert template.render(Conversation([{"role": "user", "content": "No."}])) == "No."


def test_messages_may_be_mappings_of_any_kind() -> None:
    source = "{% for message in messages %}{{ message.content }}{{ message.meta.name }}{% endfor %}"
    message = MappingProxyType({"role": "user", "content": "Hi", "meta": MappingProxyType({"name": "!"})})
    assert ChatTemplate(source, {}).render(Conversation([message])) == "Hi!"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> BoundedProgram:
    """What starts renderers, in place of the one that all templates have: none is started yet."""
    program = BoundedProgram("reader_edge_runtime.text.template.template_worker")
    monkeypatch.setattr(chat_template, "_PROGRAM", program)
    return program


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell a process's children")
def test_one_renderer_serves_all_conversations_of_a_template_and_ends_with_it(program: BoundedProgram) -> None:
    template, other = ChatTemplate(CHATML, {}), ChatTemplate(CHATML, {})
    template.render(Conversation(MESSAGES))
    assert program._forker is not None
    pid = program._forker.process.pid
    renderers = Path(f"/proc/{pid}/task/{pid}/children")
    (renderer,) = renderers.read_text().split()
    template.render(Conversation(MESSAGES))
    assert renderers.read_text().split() == [renderer]
    other.render(Conversation(MESSAGES))
    assert len(renderers.read_text().split()) == 2
    del template
    end = time.monotonic() + 60
    while renderer in renderers.read_text().split() and time.monotonic() < end:
        time.sleep(0.01)
    assert len(renderers.read_text().split()) == 1


@pytest.mark.parametrize("given", ["no", 1, None, np.array([1, 2])])
def test_going_on_with_the_last_message_is_yes_or_no(given: Any) -> None:
    with pytest.raises(PromptError, match=r"continues_final_message is .* must be True or False"):
        ChatTemplate(CHATML, {}).render(Conversation(MESSAGES, continues_final_message=given))


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff{{ 1 }}", r"not UTF-8 text \(byte 0\)"), (b" " * (1 << 20 | 1), "1048577 bytes")]
)
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=words):
        ChatTemplate.open(path, {})


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("python", ["", "/nowhere/python"])
def test_without_a_python_no_template_is_rendered(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setattr("sys.executable", python)
    with pytest.raises(PromptError, match="no process to render it can be started"):
        ChatTemplate("{{ messages }}", {}).render(Conversation([{"role": "user", "content": "Hello"}]))


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "ü"}}}
TALK: list[Message] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is ü?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "A letter."},
]


def test_tools_and_calls_go_to_a_template_that_knows_them_as_they_are() -> None:
    source = "{{ tools | tojson }}{% for m in messages %}|{{ m.role }} {{ m.content }} {{ m.tool_calls }}{% endfor %}"
    text = ChatTemplate(source, {}).render(Conversation(TALK, TOOLS))
    assert text.startswith('[{"type": "function", "function": {"name": "look_up"')
    assert "|assistant  [{'type': 'function'" in text
    assert "|tool A letter. " in text
    assert ChatTemplate("{{ tools is none }}", {}).render(Conversation(TALK)) == "True"


def test_a_template_that_knows_no_tools_gets_them_as_texts() -> None:
    source = "{% for m in messages %}|{{ m.role }} {{ m.content }}{% endfor %}"
    text = ChatTemplate(source, {}).render(Conversation(TALK, TOOLS))
    assert text.startswith("|system Be kind.\n\n# Tools\n")
    assert '<tools>\n{"type": "function", "function": {"name": "look_up"' in text
    assert (
        '|assistant <tool_call>\n{"name": "look_up", "arguments": {"word": "ü"}}\n</tool_call>|user <tool_resp' in text
    )
    assert ChatTemplate(source, {}).render(Conversation(TALK[1:2], TOOLS)).startswith("|system # Tools\n")
    without_system = "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}" + source
    text = ChatTemplate(without_system, {}).render(Conversation(TALK[1:2], TOOLS))
    assert text.startswith("|user # Tools\n")
    assert text.endswith("What is ü?")


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ messages }}", ("<tool_call>\n", "arguments")),
        ("{{ tools }} <tool_call>", ("<tool_call>\n", "arguments")),
        ("{{ tools }} [TOOL_CALLS]", ("", "arguments")),
        ("""{{ tools }} {"name": function name, "parameters": dictionary}""", ("", "parameters")),
    ],
)
def test_a_template_tells_how_calls_are_written(source: str, form: tuple[str, str]) -> None:
    found = ChatTemplate(source, {}).call_syntax
    assert (found.begin, found.arguments) == form


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], []),
        ([{"role": "assistant", "content": None, "tool_calls": 5}], []),
        (TALK, [{"name": {1}}]),
        (TALK, [5]),
    ],
)
@pytest.mark.parametrize("source", ["{{ messages }}", "{{ tools }}"])
def test_malformed_calls_and_tools_are_refused_or_shown(messages: list[Message], tools: list[Any], source: str) -> None:
    try:
        assert "5" in ChatTemplate(source, {}).render(Conversation(messages, tools))
    except PromptError as error:
        assert "\n" not in str(error)  # noqa: PT017 - which of them can be seen depends on the template


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{{ '<assistant>' * add_generation_prompt }}"
TRIMMED = PLAIN.replace("m.content", "m.content | trim")
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}</>{% endfor %}"
QUESTION = {"role": "user", "content": "Why?"}


def continued(source: str, content: Any, **args: Any) -> str:
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
    assert continued(source, content) == text


def test_the_last_part_is_continued() -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]
    assert continued(PARTS, parts).endswith("<assistant>Onetwo")


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
        continued(source, content, **args)


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
