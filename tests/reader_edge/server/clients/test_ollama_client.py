"""Ollama's own client, unmodified, over real sockets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.http.test_sockets import KEY, QUESTION, ServerProcess

ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed: pip install 'reader-edge[dev]'")

OPTIONS = {"temperature": 0, "num_predict": 24}


def look_up(place: str) -> str:
    """Look a thing up.

    Args:
      place: where it is
    """
    return f"It is in {place}."


@pytest.fixture(scope="module")
def client(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("served")
    package = PackageCopy(demo_folder, folder / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text(KEY)
    server = ServerProcess(package.folder, folder / "keys")
    host = server.url.removesuffix("/v1")
    client = ollama.Client(host=host, headers={"Authorization": f"Bearer {KEY}"})
    yield client
    client.close()
    server.process.kill()
    server.process.communicate()


def test_a_model_is_found_looked_at_and_pulled(client: Any) -> None:
    (model,) = client.list().models
    assert model.model == "demo:latest"
    assert client.show(model.model).capabilities == ["completion", "tools"]
    assert client.ps().models[0].expires_at.year > 2100
    assert client.pull(model.model).status == "success"


def test_whole_and_streamed_answers_are_the_same(client: Any) -> None:
    whole = client.chat("demo", QUESTION, options=OPTIONS)
    assert whole.message.role == "assistant"
    assert (whole.done_reason, whole.eval_count) == ("length", 24)
    parts = list(client.chat("demo", QUESTION, options=OPTIONS, stream=True))
    assert len(parts) > 2
    assert "".join(part.message.content for part in parts) == whole.message.content
    one = client.generate("demo", "# tar\n", raw=True, options=OPTIONS)
    parts = list(client.generate("demo", "# tar\n", raw=True, options=OPTIONS, stream=True))
    assert "".join(part.response for part in parts) == one.response


def test_an_answer_is_in_the_schema_that_is_given(client: Any) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    schema: dict[str, Any] = {"type": "object", "properties": {"size": {"enum": ["S", "L"]}}, "required": ["size"]}
    schema |= {"additionalProperties": False}
    output = client.chat("demo", QUESTION, format=schema, options={"num_predict": 200, "seed": 1})
    assert json.loads(output.message.content)["size"] in ("S", "L")


def test_a_python_function_is_a_tool_and_its_answer_is_taken(client: Any) -> None:
    assert client.chat("demo", QUESTION, tools=[look_up], options=OPTIONS).done
    call = {"function": {"name": "look_up", "arguments": {"place": "the cellar"}}}
    messages = [
        *QUESTION,
        ollama.Message(role="assistant", tool_calls=[call]),
        {"role": "tool", "tool_name": "look_up", "content": look_up("the cellar")},
    ]
    assert client.chat("demo", messages, tools=[look_up], options=OPTIONS).message.content


def test_what_is_refused_is_the_client_s_error_in_one_sentence(client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'other' not found") as unknown:
        client.chat("other", QUESTION)
    assert unknown.value.status_code == 404
    with pytest.raises(
        ollama.ResponseError, match=r"'options.mirostat' is 2, which is not supported here: leave it out\."
    ):
        client.generate("demo", "Hi", options={"mirostat": 2})
    with pytest.raises(ollama.ResponseError, match="makes no embeddings"):
        client.embed("demo", "Hi")
    with pytest.raises(ollama.ResponseError, match="changes nothing of it"):
        client.delete("demo")
