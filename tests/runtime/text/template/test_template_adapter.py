"""Histories that clients bring are adapted to templates that would refuse them as they are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.template.template_adapter import TemplateTraits, adapted_messages
from tests.runtime.text.text_cases import template

TEMPLATES = Path(__file__).parents[3] / "data" / "templates"
USER = {"role": "user", "content": "Weather?"}


def all_but(*lacking: str) -> Any:
    """Traits of a template that takes everything but this."""
    names = [name for name in vars(TemplateTraits) if name.startswith("takes_")]
    return SimpleNamespace(**{name: name not in lacking for name in names})


def render(name: str, *history: dict[str, Any]) -> str:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(Conversation([USER, *history]))


def called(arguments: object, call_id: str | None = "abcdefgh1", **members: object) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    call |= {} if call_id is None else {"id": call_id}
    return {"role": "assistant", "content": None, "tool_calls": [call], **members}


def answered(call_id: str = "abcdefgh1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "rain"}


@pytest.mark.parametrize("arguments", ["", " ", None])
@pytest.mark.parametrize("name", ["qwen3", "qwen3-coder", "qwen3.5", "glm-4.7-flash", "seed-oss", "mistral-nemo"])
def test_a_call_without_arguments_is_one_of_an_empty_object(name: str, arguments: object) -> None:
    assert render(name, called(arguments), answered()) == render(name, called({}), answered())


@pytest.mark.parametrize("name", ["mistral-nemo", "mistral-small-3.2", "apriel-1.5"])
def test_a_call_without_an_id_gets_that_of_its_answer_where_one_must_be(name: str) -> None:
    with_id = render(name, called({"city": "Ulm"}), answered())
    assert render(name, called({"city": "Ulm"}, None), answered()) == with_id
    assert "Ulm" in render(name, called({"city": "Ulm"}, None), USER if name == "apriel-1.5" else answered("x"))


def test_thoughts_and_text_before_a_call_are_one_where_a_template_takes_no_two() -> None:
    both = render("gpt-oss", called({}, content="Let me look.", reasoning_content="Hm."), answered())
    assert "Hm.\n\nLet me look." in both
    assert "Let me look." not in render("gpt-oss", called({}, reasoning_content="Hm."), answered())


FIRST, SECOND = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}
BOTH = {"role": "system", "content": "Be brief.\n\nBe kind."}
ANSWER = {"role": "assistant", "content": "Rain."}
ONE_SYSTEM = ["qwen3.5", "mistral-nemo", "mistral-small-3.2", "ministral-3", "apertus"]
FIRST_SYSTEM = ["gpt-oss", "smollm3", "bielik-3", "minimax-m1", "deepseek-r1-distill"]
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
)


def rendered(source: str, *messages: Message) -> str:
    return template(source).render(Conversation(messages))


@pytest.mark.parametrize("name", [*ONE_SYSTEM, *FIRST_SYSTEM])
def test_messages_of_the_system_are_one_where_a_template_refuses_or_drops_the_second(name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    assert rendered(source, FIRST, SECOND, USER) == rendered(source, BOTH, USER)
    developer = {**SECOND, "role": "developer"}
    assert rendered(source, FIRST, developer, USER) == rendered(source, BOTH, USER)
    assert rendered(source, FIRST, USER, ANSWER, SECOND, USER) == rendered(source, BOTH, USER, ANSWER, USER)
    assert not template(source).takes(Conversation([FIRST, SECOND, USER]))


@pytest.mark.parametrize("name", ["qwen3", "glm-4.6", "granite-4.0", "step-3.5-flash", "gigachat-3.1"])
def test_messages_of_the_system_stay_where_they_are_where_a_template_takes_them(name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    for messages in ([FIRST, SECOND, USER], [FIRST, USER, ANSWER, SECOND, USER]):
        assert template(source).takes(Conversation(messages))


def test_what_the_system_says_stands_before_the_user_s_first_where_a_template_knows_no_system() -> None:
    expected = "user: Be brief.\n\nBe kind.\n\nWeather?;assistant: Rain.;user: Weather?;"
    assert rendered(NO_SYSTEM, FIRST, SECOND, USER, ANSWER, USER) == expected
    with pytest.raises(PromptError, match="refuses these messages: no system"):
        rendered(NO_SYSTEM, FIRST)


def test_what_a_user_says_in_a_row_is_one_message_where_roles_must_alternate() -> None:
    again = {"role": "user", "content": "And tomorrow?"}
    answer, more = {"role": "assistant", "content": "Rain."}, {"role": "assistant", "content": "And wind."}
    one = [{**USER, "content": "Weather?\n\nAnd tomorrow?"}, {**answer, "content": "Rain.\n\nAnd wind."}, USER]
    apart = [USER, again, answer, more, USER]
    assert adapted_messages(apart, all_but("takes_users_in_a_row", "takes_answers_in_a_row")) == one
    assert adapted_messages(apart, all_but()) == apart
    source = (TEMPLATES / "mistral-nemo.jinja").read_text(encoding="utf-8")
    assert rendered(source, *apart) == rendered(source, *one)


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_a_message_that_only_thinks_is_taken_by_every_template(name: str, content: str | None) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    thought = {"role": "assistant", "content": content, "reasoning_content": "Hm, hm."}
    text = rendered(source, USER, thought, USER)
    assert "None" not in text.partition("Weather?")[2]
    assert "null" not in text.partition("Weather?")[2]
    assert text.count("Weather?") == 2


@pytest.mark.parametrize("arguments", ["{", "[" * 100_000, "[1]", "5"], ids=len)
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    [message] = adapted_messages([called(arguments)], all_but("takes_argument_texts"))
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_arguments_ids_and_answers_that_call_keep_what_a_template_takes() -> None:
    [message] = adapted_messages([called({"city": "\u00dcm"})], all_but("takes_argument_objects"))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "\u00dcm"}'
    calls = [called({}, "abcdefgh1"), called({}, "call_1")]
    message = {**calls[0], "tool_calls": [each["tool_calls"][0] for each in calls]}
    suited, answer = adapted_messages([message, answered("call_1")], all_but("takes_any_call_id"))
    kept, made = (call["id"] for call in suited["tool_calls"])
    assert (kept, answer["tool_call_id"]) == ("abcdefgh1", made)
    assert (len(made), made.isalnum()) == (9, True)
    history = [USER, called({}), answered(), {"role": "assistant", "content": "Rain."}, called({}), answered()]
    assert adapted_messages(history, all_but("takes_answers_in_a_row")) == history
