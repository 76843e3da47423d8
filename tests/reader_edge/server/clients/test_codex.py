"""What Codex sends to `/v1/responses`, and what it gets: tools of all its kinds, with a target that calls them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.ignored_fields import IGNORED_HEADER
from reader_edge.server.openai.response_tools import FreeformInput
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.conftest import ROOT
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_refusals import assert_refused
from tests.scripted_target import scripted_engine

REQUESTS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "codex_requests.json").read_text("utf-8"))
PATCH = '*** Begin Patch\n*** Update File: a.txt\n@@\n-"two"\n+\\ \U0001f600\n*** End Patch\n'
PATCHING: dict[str, Any] = {"tools": [{"type": "custom", "name": "apply_patch"}], "input": "Patch it.", "model": "demo"}


class Script:
    """What the model says, and what it saw."""

    def __init__(self) -> None:
        self.answer = "Done."
        self.seen = ""

    def __call__(self, text: str) -> str:
        self.seen = text
        return self.answer

    def call(self, name: str, **arguments: Any) -> None:
        call = json.dumps({"name": name, "arguments": arguments})
        self.answer = f"<tool_call>\n{call}\n</tool_call>"


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def scripted(script: Script, tmp_path: Path) -> Iterator[Served]:
    engine = AsyncEngine(scripted_engine(script, tmp_path))
    yield Served(engine, ServerSettings("demo", max_tokens=500))
    asyncio.run(engine.close(cancels=True))


def events(served: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = served.post("/v1/responses", body | {"stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("name", REQUESTS)
def test_what_codex_sends_is_answered(scripted: Served, script: Script, name: str) -> None:
    response = scripted.post("/v1/responses", REQUESTS[name])
    assert response.status_code == 200, response.text
    shown = json.loads(response.text.rpartition("data: ")[2])
    assert shown["type"] == "response.completed"
    assert shown["response"]["output"][0]["content"][0]["text"] == "Done."
    assert {"client_metadata", "prompt_cache_key"} < set(json.loads(response.headers[IGNORED_HEADER]))
    assert "web_search" not in script.seen


def test_the_model_sees_every_tool_that_it_can_call_and_what_they_wrote(scripted: Served, script: Script) -> None:
    scripted.post("/v1/responses", REQUESTS["a function's output"])
    for tool in ("exec_command", "multi_agent_v1__spawn_agent", "update_goal"):
        assert f'"name": "{tool}"' in script.seen
    scripted.post("/v1/responses", REQUESTS["a custom tool's output"])
    assert '"name": "apply_patch", "description": "The `apply_patch` tool' in script.seen
    assert "begin_patch hunk+ end_patch" in script.seen  # its grammar
    assert '"arguments": {"input": "*** Begin Patch' in script.seen
    assert "Success. Updated the following files" in script.seen
    scripted.post("/v1/responses", REQUESTS["tools in the input"])
    for tool in ("exec", "collaboration__spawn_agent"):
        assert f'"name": "{tool}"' in script.seen


def test_a_custom_tool_is_called_with_a_text_that_streams(scripted: Served, script: Script) -> None:
    script.call("apply_patch", input=PATCH)
    shown = events(scripted, PATCHING)
    own = [each for each in shown if each.get("output_index") == 0]
    ends = ["response.custom_tool_call_input.done", "response.output_item.done"]
    assert [own[0]["type"], *(each["type"] for each in own[-2:])] == ["response.output_item.added", *ends]
    assert {each["type"] for each in own[1:-2]} == {"response.custom_tool_call_input.delta"}
    assert "".join(each["delta"] for each in own[1:-2]) == own[-2]["input"] == PATCH
    item = own[-1]["item"]
    assert (item["type"], item["name"], item["input"], item["status"]) == (
        *("custom_tool_call", "apply_patch", PATCH),
        "completed",
    )
    assert own[0]["item"] | {"input": PATCH, "status": "completed"} == item
    (whole,) = scripted.post("/v1/responses", PATCHING).json()["output"]
    assert (whole["type"], whole["input"]) == ("custom_tool_call", PATCH)


def test_a_tool_of_a_namespace_is_called_by_both_its_names(scripted: Served, script: Script) -> None:
    script.call("multi_agent_v1__close_agent", target="a")
    *_, last = events(scripted, REQUESTS["a function's output"])
    (call,) = last["response"]["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "multi_agent_v1", "close_agent")
    script.answer = "Done."
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "closed"}
    body = REQUESTS["a function's output"]
    scripted.post("/v1/responses", body | {"input": [*body["input"], call, output]})
    assert '"name": "multi_agent_v1__close_agent", "arguments": {"target": "a"}' in script.seen


def test_the_input_of_a_custom_tool_is_held_by_its_regex_where_calls_are_held(scripted: Served, script: Script) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    form = {"type": "grammar", "syntax": "regex", "definition": "(yes|no)"}
    body = PATCHING | {"tools": [PATCHING["tools"][0] | {"format": form}], "tool_choice": "required"}
    script.call("apply_patch", input="no")
    (call,) = scripted.post("/v1/responses", body).json()["output"]
    assert call["input"] == "no"
    script.call("apply_patch", input="never")
    (call,) = scripted.post("/v1/responses", body).json()["output"]
    assert call["input"] != "never"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_text_is_read_out_of_json_however_it_is_cut(size: int, is_ascii: bool) -> None:
    for text in (PATCH, "", "\\", '"', "\ud83d and \ude00", "a\u2028\x00\t"):
        arguments = json.dumps({"input": text}, ensure_ascii=is_ascii or "\ud83d" in text)
        reader = FreeformInput()
        pieces = [reader.push(arguments[start : start + size]) for start in range(0, len(arguments), size)]
        assert "".join([*pieces, reader.end()]) == reader.text == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *(('{"inp', ""), ('{ "input": ', "")),  # cut before the text began
        *(('{"patch": "a"}', "a"), ('"a"', "a"), ("{}", "{}"), ("a", "a"), ('{"x": 1}', '{"x": 1}')),
        ('{"input": "a', "a"),
    ],
)
def test_arguments_that_are_not_the_declared_one_are_not_lost(arguments: str, text: str) -> None:
    reader = FreeformInput()
    assert reader.push(arguments) + reader.end() == text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "'input' is 'data:', but nothing is fetched from there: give the image as 'data:image/png;base64,...'.",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "a"}]}]},
            "'input' has a picture without 'image_url', but no files are kept here: give it as a data URL.",
        ),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "'input' has a picture ('input_image') in a message of the assistant: leave it out.",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:a;base64,YQ=="}]}]},
            "'messages[0].content[0]' is of type 'image', but the model reads texts alone: leave it out, or say in "
            "words what it holds.",
        ),
        ({"input": []}, "The conversation is empty: give at least one message."),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}]}, "'tools[0].tools[0].name' is"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [{"name": f"t{n}"} for n in range(100)]}] * 2},
            "'tools' has 200 tools with those of namespaces: give 128.",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(scripted: Served, fields: dict[str, Any], words: str) -> None:
    assert_refused(scripted.post("/v1/responses", {"model": "demo", "input": "Hi"} | fields), 400, words)


def test_a_strict_server_refuses_tools_that_cannot_be_called(scripted: Served) -> None:
    strict = Served(scripted.engine, ServerSettings("demo", refused_fields="all"))
    body = {"model": "demo", "input": "Hi", "tools": [{"type": "web_search"}]}
    assert_refused(strict.post("/v1/responses", body), 400, "'tools[0].type' is 'web_search', but must be one of")
