"""Ollama's client, and Open WebUI's requests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from reader_edge.server.ollama.bodies import OllamaChatBody, Options
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.conftest import ROOT
from tests.reader_edge.server.conftest import Served
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
def client(server: ServerProcess) -> Iterator[Any]:
    host = server.url.removesuffix("/v1")
    client = ollama.Client(host=host, headers={"Authorization": f"Bearer {KEY}"})
    yield client
    client.close()


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


REQUESTS = json.loads((ROOT / "tests" / "data" / "open_webui_requests.json").read_text("utf-8"))
REFUSED = [each for each in REQUESTS if "refused" in each]
LONG = [each for each in REQUESTS if each.get("is_long")]
ANSWERED = [each for each in REQUESTS if each not in REFUSED and each not in LONG]


@pytest.fixture
def served(async_engine: AsyncEngine) -> Served:
    return Served(async_engine, ServerSettings("demo", max_tokens=16))  # a whole page of text would tell no more


def name_of(request_: dict[str, Any]) -> str:
    return str(request_["name"])


@pytest.mark.parametrize("request_", ANSWERED, ids=name_of)
def test_requests_of_open_webui_are_answered(served: Served, request_: dict[str, Any]) -> None:
    path, body = request_["path"], request_["body"]
    response = served.request(request_["method"], path, json=body)
    assert response.status_code == 200, response.text
    if body is None or not body.get("stream") or path.endswith("/count_tokens"):
        output = response.json()
        assert output.get("error") is None
        assert output.get("done", True)
    elif path.startswith("/api/"):
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    else:
        assert (
            "response.completed" in response.text
            or "response.incomplete" in response.text
            or (response.text.endswith("data: [DONE]\n\n"))
        )


@pytest.mark.parametrize("request_", REFUSED, ids=name_of)
def test_what_cannot_be_done_for_open_webui_is_refused_by_name(served: Served, request_: dict[str, Any]) -> None:
    response = served.request(request_["method"], request_["path"], json=request_["body"])
    assert response.status_code in (400, 404)
    assert request_["refused"] in response.text


@pytest.mark.parametrize("request_", LONG, ids=name_of)
def test_the_many_tools_of_open_webui_are_read_up_to_the_prompt(served: Served, request_: dict[str, Any]) -> None:
    """They take more tokens than the demo model's context has; `try_clients` asks a larger model."""
    response = served.post(request_["path"], request_["body"])
    assert response.status_code == 400
    assert "the model's context of 2048" in response.text


def test_repeat_penalty_is_repetition_penalty(served: Served) -> None:
    output = [
        served.complete(**{name: 1.5}, max_tokens=16)["choices"] for name in ("repeat_penalty", "repetition_penalty")
    ]
    assert output[0] == output[1] != served.complete(max_tokens=16)["choices"]


def test_reasoning_effort_among_options_reaches_the_template() -> None:
    assert OllamaChatBody(options=Options(reasoning_effort="low")).template_args() == {"reasoning_effort": "low"}
