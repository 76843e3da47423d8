"""Anthropic's turns as messages of chat templates."""

import base64
import json
from typing import Any

import pytest

from reader_edge.server.anthropic.blocks import signature_of
from reader_edge.server.anthropic.bodies import MessagesBody
from reader_edge.server.api_error import ApiError
from reader_edge.server.schema import decode
from reader_edge_runtime.errors import ConversationError


def messages_of(*turns: dict[str, Any], system: Any = "") -> Any:
    body = decode({"messages": list(turns), "system": system}, MessagesBody)
    return body.question()[0].messages


def text(words: str, **fields: object) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def picture(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}


ASK = {"role": "user", "content": "Look."}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "a"}, "caller": {"type": "direct"}}
CALLED = {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": {"at": "a"}}}


def test_texts_may_come_in_blocks_with_marks_for_a_cache() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    blocks = [text("One.", cache_control=mark, citations=None), text("Two.")]
    plain = [{"role": "system", "content": "One.\nTwo."}, {"role": "user", "content": "One.\nTwo."}]
    assert messages_of({"role": "user", "content": blocks}, system=blocks) == plain
    assert messages_of({"role": "user", "content": "One.\nTwo."}, system="One.\nTwo.") == plain


def test_turns_of_one_role_are_one() -> None:
    turns = [{"role": role, "content": role} for role in ("user", "user", "assistant", "assistant", "user")]
    assert [each["content"] for each in messages_of(*turns)] == ["user\nuser", "assistant\nassistant", "user"]


def test_a_system_s_turn_is_in_front_or_in_the_user_s() -> None:
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "A."},
        ASK,
        {"role": "system", "content": [text("B.")]},
    ]
    assert messages_of(*turns, system="S.") == [
        {"role": "system", "content": "S.\nA."},
        {"role": "user", "content": "Look.\n<system-reminder>\nB.\n</system-reminder>"},
    ]


def test_pictures_stand_where_they_are() -> None:
    words, image, other = (
        {"type": "text", "text": "Look."},
        {"type": "image", "image": b"1"},
        {"type": "image", "image": b"2"},
    )
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("Read."), picture(b"2")]}
    assert messages_of(
        {"role": "user", "content": [text("Look."), picture(b"1"), text("Look.")]},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result, picture(b"1")]},
    ) == [
        {"role": "user", "content": [words, image, words]},
        {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "Read."}, other],
            "tool_call_id": "toolu_1",
            "name": "look",
        },
        {"role": "user", "content": [image]},
    ]


def test_calls_and_their_results_find_each_other() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("It is"), text("there.")]}
    failed = {"type": "tool_result", "tool_use_id": "toolu_2", "content": "No such place.", "is_error": True}
    empty = {"type": "tool_result", "tool_use_id": "toolu_1", "cache_control": {"type": "ephemeral"}}
    assert messages_of(
        ASK,
        {"role": "assistant", "content": [thought, {"type": "redacted_thinking", "data": "x"}, text("So."), CALL]},
        {"role": "user", "content": [result, failed, empty, text("And now?")]},
    ) == [
        ASK,
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [CALLED]},
        {"role": "tool", "content": "It is\nthere.", "tool_call_id": "toolu_1", "name": "look"},
        {"role": "tool", "content": "Error: No such place.", "tool_call_id": "toolu_2"},
        {"role": "tool", "content": "", "tool_call_id": "toolu_1", "name": "look"},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    ("role", "block", "words"),
    [
        ("user", CALL, "'messages[0].content[0]' is of type 'tool_use', which is for the role 'assistant'"),
        ("user", {"type": "thinking", "thinking": "Hm."}, "of type 'thinking', which is for the role 'assistant'"),
        ("assistant", {"type": "tool_result", "tool_use_id": "a"}, "'tool_result', which is for the role 'user'"),
        ("system", CALL, "not for 'system': put it where it belongs."),
        ("assistant", picture(b""), "of type 'image', which is for the role 'user'"),
        (
            "user",
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            "'messages[0].content[0].source.type' is 'url', but must be 'base64'.",
        ),
    ],
)
def test_a_block_in_a_wrong_place_is_refused(role: str, block: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as refused:
        messages_of({"role": role, "content": [block]})
    assert refused.value.status == 400
    assert words in str(refused.value)


def test_a_picture_that_is_no_base64_is_refused_by_its_place() -> None:
    block = {"type": "image", "source": {"type": "base64", "data": "!"}}
    with pytest.raises(ConversationError, match=r"^'messages\[0\]\.content\[0\]\.source\.data' is no base64"):
        messages_of({"role": "user", "content": [block]})


def test_a_note_to_anthropic_s_accounts_is_no_part_of_the_prompt() -> None:
    note = "x-anthropic-billing-header: cc_version=2.1.1; cc_entrypoint=cli; cch=00000;"
    assert messages_of(ASK, system=[text(note), text("Be short.")])[0]["content"] == "Be short."
    assert messages_of(ASK, system=f"{note}\nBe short.")[0]["content"] == "Be short."
    assert messages_of({"role": "user", "content": note})[0]["content"] == note


def tool(name: str, **fields: object) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **fields}


def test_a_deferred_tool_is_described_where_a_turn_names_it() -> None:
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "tool_reference", "tool_name": "b"}]}
    turns = [ASK, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [found]}]
    before = decode({"messages": [ASK], "tools": [tool("a")]}, MessagesBody).question()[0]
    tools = [tool("a"), tool("b", defer_loading=True), tool("c", defer_loading=True)]
    prompt, use = decode({"messages": turns, "tools": tools}, MessagesBody).question()
    assert (prompt.tools, use.names) == (before.tools, ("a", "b"))
    assert json.loads(prompt.messages[-1]["content"]) == {
        "type": "function",
        "function": {"name": "b", "parameters": {"type": "object"}},
    }
    prompt, use = decode({"messages": turns, "tools": [tool("a")]}, MessagesBody).question()
    assert (prompt.messages[-1]["content"], use.names) == ("There is no tool 'b'.", ("a",))


def test_tools_come_and_go_in_turns_of_the_system() -> None:
    def change(kind: str, **named: object) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": named}]}

    tools = [tool("a"), tool("b", defer_loading=True)]
    added = change("tool_addition", type="tool_reference", name="b")
    defined = change("tool_addition", type="tool_definition", definition=tool("c"))
    removed = [change("tool_removal", type="tool_reference", name=name) for name in ("a", "b")]
    for turns, names in (
        ([], ("a",)),
        ([added], ("a", "b")),
        ([added, defined], ("a", "b", "c")),
        ([added, defined, *removed], ("c",)),
        ([added, *removed, added], ("b",)),
    ):
        prompt, use = decode({"messages": [ASK, *turns], "tools": tools}, MessagesBody).question()
        assert use.names == names
        assert [each["function"]["name"] for each in prompt.tools] == ["a"]
        assert len(prompt.messages[0]["content"].split("<system-reminder>")) == len(turns) + 1


@pytest.mark.parametrize("hidden", ["", "Hm.", "\u00e9\n"])
def test_thoughts_that_were_not_shown_come_back_in_their_signature(hidden: str) -> None:
    block = {"type": "thinking", "thinking": "", "signature": signature_of(hidden)}
    (message,) = messages_of({"role": "assistant", "content": [block, text("So.")]})
    assert message.get("reasoning_content", "") == hidden
    for other in ("", "EqQBCgIYAhIM", "not base64!", base64.b64encode(b"reader-edge:\xff").decode()):
        (message,) = messages_of({"role": "assistant", "content": [block | {"signature": other}, text("So.")]})
        assert not message["reasoning_content"]


@pytest.mark.parametrize(
    ("thinking", "args"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "adaptive", "display": "omitted"}, {}),
        (None, {}),
    ],
)
def test_thinking_is_a_variable_of_the_template(thinking: dict[str, Any] | None, args: dict[str, Any]) -> None:
    fields = {"messages": [ASK], "thinking": thinking, "output_config": {"effort": "low"}}
    body = decode(fields, MessagesBody)
    assert body.question()[0].template_args == {"reasoning_effort": "low", **args}


def test_an_answer_goes_on_behind_a_last_turn_of_the_assistant() -> None:
    for content, continues in (("It is", True), ([CALL], False), ([], False)):
        body = decode({"messages": [ASK, {"role": "assistant", "content": content}]}, MessagesBody)
        assert body.question()[0].continues_final_message is continues
