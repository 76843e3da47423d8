"""Anthropic's interface: the answers of the same engine, in Anthropic's words."""

import logging
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.anthropic.blocks import signature_of
from reader_edge.server.anthropic.content import ContentBlocks
from reader_edge.server.completion import AnswerParser
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationChunk
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.server.anthropic_requests import (
    BODY,
    PATH,
    USER,
    WEATHER,
    count,
    events,
    put_together,
    whole,
    without_ids,
)
from tests.reader_edge.server.clients.test_client_types import TEMPLATE
from tests.reader_edge.server.conftest import RequestLines, Served

ANY = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 200}


def test_a_whole_answer_is_that_of_a_chat(served: Served) -> None:
    chat = {"model": "demo", "messages": [USER], "temperature": 0, "max_tokens": 24}
    choice = served.post("/v1/chat/completions", chat).json()["choices"][0]
    message = whole(served)
    assert message["content"] == [{"type": "text", "text": choice["message"]["content"]}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "demo")
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    assert message["usage"]["output_tokens"] == 24


def test_draft_false_answers_plainly_and_with_the_same_text(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    lines = RequestLines(caplog)
    repeating = {"messages": [{"role": "user", "content": "tar -czf archive.tar.gz\n" * 4}], "max_tokens": 60}
    drafted, plain = (whole(served, **repeating, draft=draft) for draft in (True, False))
    assert drafted["content"] == plain["content"]
    assert [each["accepted_tokens"] > 0 for each in lines.fields] == [True, False]


def test_usage_counts_what_was_cached_apart(served: Served) -> None:
    num_tokens = count(served)
    assert [whole(served)["usage"]["cache_read_input_tokens"] > 0 for _ in range(2)] == [False, True]
    usage = whole(served)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num_tokens
    assert usage["cache_creation_input_tokens"] == 0


def test_a_count_takes_the_body_of_the_message(served: Served) -> None:
    assert count(served, **BODY | {"stream": True}) == count(served)
    assert count(served, tools=[WEATHER]) > count(served)
    assert count(served, tools=[WEATHER], tool_choice={"type": "none"}) == count(served)
    assert count(served, system="Be short.") > count(served)


def test_events_come_in_order_and_are_the_whole_answer(served: Served) -> None:
    message = whole(served)
    shown = events(served)
    kinds = [each["type"] for each in shown]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert len(kinds) > 8
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert shown[0]["message"]["content"] == []
    streamed = put_together(shown)
    del message["usage"], streamed["usage"]  # the second finds the prompt cached
    assert without_ids(streamed) == without_ids(message)


@pytest.mark.parametrize("stop", ["e", "tar"])
def test_a_stop_sequence_is_named(served: Served, stop: str) -> None:
    text = whole(served)["content"][0]["text"]
    stops = [stop, "never in a text"]
    found = min((each for each in stops if each in text), key=text.find)
    for message in (whole(served, stop_sequences=stops), put_together(events(served, stop_sequences=stops))):
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", found)
        assert message["content"][0]["text"] == text[: text.find(found)]


def test_a_full_context_is_named(served: Served) -> None:
    context = served.engine.engine.package.manifest.max_context
    message = whole(served, messages=[USER | {"content": "tar " * (context // 4)}], max_tokens=context)
    assert message["stop_reason"] in ("max_tokens", "model_context_window_exceeded")


def test_a_tool_is_called_whole_and_in_pieces(served: Served) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    one = {"type": "any", "disable_parallel_tool_use": True}
    for choice in (one, {"type": "tool", "name": "weather"}):
        message = whole(served, **ANY | {"tool_choice": choice})
        (block,) = message["content"]
        assert (block["type"], block["name"], message["stop_reason"]) == ("tool_use", "weather", "tool_use")
        assert block["input"]["place"] in ("Paris", "Oslo")
        shown = events(served, **ANY | {"tool_choice": choice})
        assert sum(each["type"] == "content_block_delta" for each in shown) > 1
        assert without_ids(put_together(shown))["content"] == without_ids(message)["content"]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "Rain.", "is_error": False}
    turns = [USER, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
    assert whole(served, tools=[WEATHER], messages=turns)["content"][0]["text"]


def test_a_call_that_is_cut_is_in_a_stream_alone(served: Served) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    message = whole(served, **ANY | {"max_tokens": 16})
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    shown = events(served, **ANY | {"max_tokens": 16})
    assert shown[2]["content_block"]["type"] == "tool_use"
    assert [each["type"] for each in shown[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


def test_an_answer_may_have_a_schema(served: Served) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    form = {"type": "json_schema", "schema": {"enum": ["S", "L"]}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        assert whole(served, **fields)["content"][0]["text"] in ('"S"', '"L"')


def test_what_serves_anthropic_s_machines_changes_nothing(served: Served) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    fields: dict[str, Any] = {
        "metadata": {"user_id": "a"},
        "service_tier": "auto",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [],
        "container": None,
        "mcp_servers": [],
        **mark,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "made-up-2026-01-01"}
    response = served.post(f"{PATH}?beta=true", BODY | fields, headers=headers)
    assert response.json()["content"] == whole(served)["content"]
    tool = WEATHER | mark | {"type": "custom", "defer_loading": False, "eager_input_streaming": True}
    assert count(served, tools=[tool]) == count(served, tools=[WEATHER])


def test_tools_of_anthropic_s_own_are_left_out_and_the_log_says_so_once(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    own = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}, {"type": "mcp_toolset"}]
    own += [{"type": "bash_20250124", "name": "bash"}]
    with caplog.at_level(logging.WARNING):
        assert whole(served, tools=own)["content"] == whole(served, tools=own)["content"] == whole(served)["content"]
        assert count(served, tools=[*own, WEATHER]) == count(served, tools=[WEATHER])
    lines = [each.getMessage() for each in caplog.records if "tool of type 'web_search_20250305'" in each.getMessage()]
    assert len(lines) == 1


def pieces_of(*chunks: GenerationChunk, hides_thoughts: bool = False) -> tuple[list[Any], ContentBlocks]:
    content = ContentBlocks(AnswerParser(), hides_thoughts)
    return [event for chunk in chunks for event in content.push(chunk)], content


def test_thoughts_are_blocks_with_a_signature() -> None:
    chunks = [
        GenerationChunk("", (), reasoning="Hm"),
        GenerationChunk("", (), reasoning="."),
        GenerationChunk("So.", (), "stop"),
    ]
    shown, content = pieces_of(*chunks)
    thought, text = content.blocks
    assert (thought["type"], thought["thinking"], text) == ("thinking", "Hm.", {"type": "text", "text": "So."})
    assert thought["signature"]
    deltas = [each["delta"] for each in shown if each["type"] == "content_block_delta"]
    kinds = ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]
    assert [each["type"] for each in deltas] == kinds
    assert deltas[2]["signature"] == thought["signature"]
    hidden, content = pieces_of(*chunks, hides_thoughts=True)
    assert content.blocks == [thought | {"thinking": "", "signature": signature_of("Hm.")}, text]
    assert [each["delta"]["type"] for each in hidden if "delta" in each] == kinds[2:]


def test_an_answer_that_says_nothing_is_an_empty_text() -> None:
    shown, content = pieces_of(GenerationChunk("", (), "stop"))
    assert [each["type"] for each in shown] == ["content_block_start", "content_block_stop"]
    assert content.blocks == [{"type": "text", "text": ""}]


def test_a_model_s_thoughts_come_before_its_text(demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    package.write_file("chat_template.jinja", TEMPLATE.encode())
    engine = AsyncEngine(Engine.load(package.folder, EngineConfig(is_calibrated=False)))
    served = Served(engine, ServerSettings("demo"))
    thinking = {"type": "enabled", "budget_tokens": 1024}
    (block,) = whole(served, thinking=thinking)["content"]
    assert (block["type"], bool(block["thinking"])) == ("thinking", True)
    hidden = {"type": "thinking", "thinking": "", "signature": signature_of(block["thinking"])}
    assert whole(served, thinking=thinking | {"display": "omitted"})["content"] == [hidden]
    assert whole(served, thinking={"type": "disabled"})["content"][0]["type"] == "text"
