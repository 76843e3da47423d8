"""Messages reach a template as transformers 5 would give them, and differently where it could not render those."""

import json
from typing import Any

import pytest

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.template_process import TOO_MUCH
from tests.runtime.text.templates import HereProcess, template

USER: Message = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {"type": "object"}}}
LOOP = "{% for m in messages %}|{{ m.role }} BODY{% endfor %}{{ tools | tojson }}"
CALLS = "{% for c in m.tool_calls or [] %}FORM{% endfor %}"


def called(arguments: Any, call_id: str | None = "call00001", **members: Any) -> list[Message]:
    head = {} if call_id is None else {"id": call_id}
    call = {**head, "type": "function", "function": {"name": "find", "arguments": arguments}}
    return [USER, {"role": "assistant", **members, "tool_calls": [call]}]


def render(body: str, messages: list[Message], **args: Any) -> str:
    return template(LOOP.replace("BODY", body)).render(Conversation(messages, (), args)).removesuffix("null")


@pytest.mark.parametrize("content", [{"content": None}, {}])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{{ m.content }}", ""),  # as transformers 5: left out, so that no "None" is written
        ("{{ m.content is defined }}", "False"),
        ("{% if m.content %}x{% endif %}", ""),
        ("{{ m.content + '.' }}", "."),  # what refuses both gets a text
        ("{{ m.content.split('x')[0] }}", ""),
    ],
)
def test_a_content_that_is_null_is_left_out_or_empty(content: dict[str, Any], body: str, said: str) -> None:
    assert render(body, called({}, **content)).endswith(f"|assistant {said}")


def test_a_template_that_asks_for_null_gets_it() -> None:
    body = "{% if m.content is none %}nothing{% else %}{{ m.content }}{% endif %}"
    assert render(body, called({}, content=None)).endswith("|assistant nothing")


def test_other_members_that_are_null_are_left_out_and_all_others_handed_on() -> None:
    message = {**USER, "name": None, "tool_calls": None, "mood": "kind", "number": 5}
    assert (
        render("{{ m | tojson }}", [message])
        == '|user {"role": "user", "content": "Hello", "mood": "kind", "number": 5}'
    )


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_all_of_its_names(name: str) -> None:
    said = {"role": "assistant", "content": "4", name: "2 + 2"}
    body = "{{ m.reasoning_content }}/{{ m.thinking }}"
    assert render(body, [USER, said]).endswith("|assistant 2 + 2/2 + 2")


@pytest.mark.parametrize("form", ["{{ '<' + c.function.arguments + '>' }}", "<{{ c.function.arguments }}>"])
@pytest.mark.parametrize("arguments", [{"a": "ü"}, '{"a": "ü"}'])
def test_a_template_that_concatenates_arguments_gets_a_text(form: str, arguments: Any) -> None:
    assert render(CALLS.replace("FORM", form), called(arguments)).endswith('<{"a": "ü"}>')


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("<{{ c.function.arguments | tojson }}>", '<{"a": "ü"}>'),
        ("{% for k, v in c.function.arguments | items %}<{{ k }}={{ v }}>{% endfor %}", "<a=ü>"),
    ],
)
@pytest.mark.parametrize("arguments", [{"a": "ü"}, '{"a": "ü"}'])
def test_a_template_that_wants_an_object_gets_one(form: str, said: str, arguments: Any) -> None:
    assert render(CALLS.replace("FORM", form), called(arguments)).endswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"), [({"a": 1}, '<{"a": 1}>'), ('{"a":1}', '<{"a":1}>'), ("no JSON", "<no JSON>")]
)
def test_arguments_are_as_they_came_where_both_are_taken(arguments: Any, said: str) -> None:
    form = "{% set a = c.function.arguments %}<{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}>"
    assert render(CALLS.replace("FORM", form), called(arguments)).endswith(said)


NINE = "{% if c.id | length != 9 %}{{ raise_exception('Nine.') }}{% endif %}{{ c.id }}"


def test_ids_of_calls_are_mapped_where_a_template_refuses_them() -> None:
    body = CALLS.replace("FORM", NINE) + "{{ m.tool_call_id }}"
    answer = {"role": "tool", "tool_call_id": "call_abc-123-and-more", "content": "x"}
    text = render(body, [*called({}, "call_abc-123-and-more"), answer])
    first, second = (part.split()[-1] for part in text.split("|")[-2:])
    assert first == second
    assert len(first) == 9
    assert first.isalnum()
    other = render(body, called({}, "call_abc-123-and-less")).split()[-1]
    assert other != first
    assert render(body, called({}, "aB3dE6gH9")).endswith("|assistant aB3dE6gH9")


def test_ids_of_calls_are_left_alone_where_any_are_taken() -> None:
    assert render(CALLS.replace("FORM", "{{ c.id }}"), called({}, "call_1")).endswith("|assistant call_1")


PARTS: Message = {"role": "user", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{{ m.content }}", "One. Two."),  # which would be Python's form of a list
        ("{{ m.content + '!' }}", "One. Two.!"),
        ("{{ m.content | tojson }}", '"One. Two."'),
        ("{% for p in m.content %}<{{ p.text }}>{% endfor %}", "<One. ><Two.>"),
        (
            "{% if m.content is string %}s{% else %}{{ m.content | map(attribute='text') | join('+') }}{% endif %}",
            "One. +Two.",
        ),
    ],
)
def test_texts_in_parts_are_one_text_where_a_template_takes_no_parts(body: str, said: str) -> None:
    assert render(body, [PARTS]) == f"|user {said}"


def test_a_text_is_one_part_where_a_template_takes_parts_alone() -> None:
    assert render("{% for p in m.content %}{{ p['text'] }}{% endfor %}", [USER]) == "|user Hello"


def test_tools_are_none_where_there_are_none() -> None:
    source = "{{ tools is none }} {{ tools is defined }}"
    assert template(source).render(Conversation([USER])) == "True True"
    assert template(source).render(Conversation([USER], [TOOL])) == "False True"


def test_smollm_3_gets_its_tools_under_the_name_it_knows() -> None:
    source = "{{ xml_tools | tojson }}{{ messages[0].content }}"
    assert template(source).render(Conversation([USER], [TOOL])) == json.dumps([TOOL]) + "Hello"


def test_keys_come_in_the_order_that_they_were_given_in() -> None:
    tool = {"type": "function", "function": {"parameters": {"z": 1, "a": [True, None, 1.0]}, "name": "find"}}
    text = template("{{ tools | tojson }}").render(Conversation([USER], [tool]))
    assert (
        text == '[{"type": "function", "function": {"parameters": {"z": 1, "a": [true, null, 1.0]}, "name": "find"}}]'
    )


@pytest.mark.parametrize("messages", [[], ()])
def test_an_empty_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(PromptError, match="conversation is empty"):
        template("x").render(Conversation(messages))


def test_what_takes_too_long_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = template("x"), list[str]()

    def ask(self: object, request: str) -> dict[str, str]:
        asked.append(request)
        return {"error": TOO_MUCH}

    monkeypatch.setattr(HereProcess, "ask", ask)
    with pytest.raises(PromptError, match="more time or memory"):
        made.render(Conversation([{"role": "assistant", "content": None, "reasoning": "y"}]))
    assert len(asked) == 1
