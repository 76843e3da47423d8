"""Clients of other makers, unmodified, over real sockets. Each is tried where it is installed: CI has none of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.http.test_sockets import KEY, MAX_SECONDS, ServerProcess

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

QUESTION = "What is tar?"
SCHEMA: dict[str, Any] = {
    "title": "Entry",
    "description": "An entry.",
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["shell", "archive"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "Entry", "description": "An entry.", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def server(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    package = PackageCopy(demo_folder, folder / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text(KEY)
    server = ServerProcess(package.folder, folder / "keys")
    yield server
    server.process.kill()
    server.process.communicate(timeout=MAX_SECONDS)


@pytest.mark.parametrize("uses_responses", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_langchain_chats_streams_calls_and_parses(server: ServerProcess, uses_responses: bool) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="not installed: pip install langchain-openai")
    messages = pytest.importorskip("langchain_core.messages")
    chat = langchain.ChatOpenAI(
        model="demo",
        base_url=server.url,
        api_key=KEY,
        max_tokens=200,
        temperature=0,
        max_retries=0,
        use_responses_api=uses_responses,
    )
    whole = chat.invoke(QUESTION)
    assert whole.text
    assert "".join(piece.text for piece in chat.stream(QUESTION)) == whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    called = chat.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False).invoke(QUESTION)
    (call,) = called.tool_calls
    assert call["args"]["kind"] in ("shell", "archive")
    output = messages.ToolMessage("It is there.", tool_call_id=call["id"])
    history = [messages.SystemMessage("Be short."), messages.HumanMessage(QUESTION), called, output]
    assert chat.invoke(history).text
    parsed = chat.with_structured_output(SCHEMA, method="json_schema", strict=True).invoke(QUESTION)
    assert parsed["kind"] in ("shell", "archive")


@pytest.mark.filterwarnings("ignore")
def test_litellm_chats_streams_calls_and_completes(server: ServerProcess) -> None:
    litellm = pytest.importorskip("litellm", reason="not installed: pip install litellm")
    fields: dict[str, Any] = {"model": "openai/demo", "api_base": server.url, "api_key": KEY, "max_tokens": 100}
    sent = fields | {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    whole = litellm.completion(**sent).choices[0].message.content
    pieces = litellm.completion(**sent, stream=True, stream_options={"include_usage": True})
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == whole
    called = litellm.completion(**sent, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    message = called.choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments)["kind"] in ("shell", "archive")
    output = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is there."}
    history = [*sent["messages"], message.model_dump(), output]
    assert litellm.completion(**sent | {"messages": history}).choices[0].message.content
    text = litellm.text_completion(**fields | {"model": "text-completion-openai/demo"}, prompt="# tar")
    assert text.choices[0].text


def test_llm_of_the_command_line_chats(server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("llm", reason="not installed: pip install llm")
    model = {"model_id": "demo", "model_name": "demo", "api_base": server.url, "api_key_name": "demo"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    (tmp_path / "keys.json").write_text(json.dumps({"demo": KEY}))
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "llm", "-m", "demo", "-o", "max_tokens", "20", QUESTION]
    for further in ([], ["--no-stream"], ["-s", "Be short."]):
        sent = [*command, *further]
        done = subprocess.run(sent, capture_output=True, text=True, env=environment, timeout=MAX_SECONDS)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
