"""Answers of a scripted target are the script's, drafted or drawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime import Conversation, Engine, GenerationConfig, SamplingConfig
from tests.reader_edge.server.clients.edit_script import DONE, TASK, edit_script
from tests.scripted_target import scripted_engine

FILE = "".join(f"{number}: a line with some words of its own, {number * 7919}\n" for number in range(60))


def recite(text: str) -> str:
    """Writes a file of the prompt back, with one line changed."""
    return text.partition("<file>")[2].partition("</file>")[0].replace("30: a line", "30: another line")


@pytest.fixture(scope="module")
def reciting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with scripted_engine(recite, tmp_path_factory.mktemp("scripted")) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_script_is_followed_whole_and_drafted(reciting: Engine, temperature: float) -> None:
    config = GenerationConfig(max_tokens=4000, sampling=SamplingConfig(temperature=temperature))
    result = reciting.generate(Conversation([{"role": "user", "content": f"<file>{FILE}</file>"}]), config)
    assert result.text == FILE.replace("30: a line", "30: another line")
    assert result.finish_reason == "stop"
    assert result.stats.num_tokens > 2 * result.stats.num_steps


def test_the_script_of_agents_reads_edits_and_ends(tmp_path: Path) -> None:
    def tool(name: str, *parameters: str) -> dict[str, object]:
        properties = {each: {"type": "string"} for each in parameters}
        schema = {"type": "object", "properties": properties, "required": list(parameters)}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    tools = (tool("Edit", "file_path", "old_string", "new_string"), tool("Read", "file_path"))
    messages: list[dict[str, Any]] = [{"role": "user", "content": TASK.format(path="a.txt", old="one", new="two")}]
    calls = []
    with scripted_engine(edit_script, tmp_path) as engine:
        for output in ("1\tone", "edited"):
            (call,) = engine.generate(Conversation(messages), tools=tools).tool_calls
            calls.append((call.name, call.arguments))
            messages.append({"role": "assistant", "content": None, "tool_calls": [call.message]})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
        assert engine.generate(Conversation(messages), tools=tools).text == DONE
    edit = {"file_path": "a.txt", "old_string": "one", "new_string": "two"}
    assert calls == [("Read", {"file_path": "a.txt"}), ("Edit", edit)]
