"""A conversation reaches the model whole, or is refused in one sentence that names the place: nothing is left out."""

from typing import Any

import numpy as np
import pytest

from reader_edge_runtime.errors import ConversationError, PromptError
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.conversation_check import ROLES, checked_conversation
from tests.runtime.text.text_cases import template

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ 'mood' and messages[0].mood }}"
USER: Any = {"role": "user", "content": "Hi"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}


def tool(**fields: Any) -> Any:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["What is it?"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "image": "b"}]}, "messages[0].content[0].image"),
        ({"role": "user", "content": "a", "images": ["b"]}, "messages[0].images"),
        ({"role": "user", "content": "a", "audio": {"id": "b"}}, "messages[0].audio"),
        ({"role": "user", "content": "a", "contents": "b"}, "messages[0].contents"),
        ({"role": "assistant", "content": "a", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "pirate", "content": "a"}, "messages[0].role"),
        ({"role": "", "content": "a"}, "messages[0].role"),
        ({"role": 5, "content": "a"}, "messages[0].role"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "messages[0].content"),
        ({"role": "user", "content": "a", "name": 5}, "messages[0].name"),
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "assistant", "content": "a", "reasoning_content": 5}, "messages[0].reasoning_content"),
        ({"role": "assistant", "tool_calls": np.array([1, 2])}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}, "messages[0].tool_calls[0].id"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ("Hi", "messages[0]"),
    ],
    ids=str,
)
def test_what_would_be_left_out_is_refused_by_its_place(message: Any, place: str) -> None:
    with pytest.raises(ConversationError, match=r"^[^\n]+: ?[^\n]+\.$|^[^\n]+ must be [^\n]+\.$") as refused:
        template(CHATML).render(Conversation([message]))
    assert refused.value.place == place
    assert f"'{place}'" in str(refused.value)


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ([5], "tools[0]"),
        ([{"name": "f"}], "tools[0]"),
        ([{"type": "web_search", "function": {"name": "f"}}], "tools[0]"),
        ([tool(name="")], "tools[0].function.name"),
        ([tool(name="a b")], "tools[0].function.name"),
        ([tool(description=5)], "tools[0].function.description"),
        ([tool(parameters="{}")], "tools[0].function.parameters"),
        ([tool(input_schema={"type": "object"})], "tools[0].function.input_schema"),
        ([tool(), tool()], "tools"),
        ("f", "tools"),
    ],
)
def test_tools_that_no_model_could_call_are_refused_by_their_place(tools: Any, place: str) -> None:
    with pytest.raises(ConversationError) as refused:
        template(CHATML).render(Conversation([USER], tools))
    assert refused.value.place == place


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm."},
        {"role": "user", "content": "a", "audio": None, "refusal": None, "annotations": [], "id": "x", "images": []},
        {"role": "user", "content": "a", "mood": "good"},  # of which the template knows
        *({"role": role, "content": "a"} for role in ROLES),
    ],
    ids=str,
)
def test_what_clients_and_templates_know_is_taken(message: Any) -> None:
    assert template(CHATML).render(Conversation([message]))


def test_parts_are_texts_of_their_type_and_a_developer_is_the_system_where_a_template_knows_none() -> None:
    parts = [{"text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    chat = Conversation([{"role": "developer", "content": parts}])
    (message,) = checked_conversation(chat, CHATML).messages
    assert message == {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    (message,) = checked_conversation(chat, CHATML + "developer").messages
    assert message["role"] == "developer"
    assert template(CHATML).render(chat) == "<|system|>ab"


@pytest.mark.parametrize("messages", [None, "Hi", USER, 5, []])
def test_what_is_no_list_of_messages_is_refused(messages: Any) -> None:
    with pytest.raises(PromptError, match=r"list of messages|conversation is empty"):
        template(CHATML).render(Conversation(messages))


def test_a_refusal_stands_in_place_of_a_content() -> None:
    refusal = {"role": "assistant", "content": None, "refusal": "I will not."}
    assert template(CHATML).render(Conversation([refusal])) == "<|assistant|>I will not."
    assert template(CHATML).render(Conversation([{**refusal, "content": "Yes."}])) == "<|assistant|>Yes."
