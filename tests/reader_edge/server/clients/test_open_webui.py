"""Requests that Open WebUI 0.12.4 sent (tests/data/README.md) are answered, or refused as they must be."""

import json
from typing import Any

import pytest

from reader_edge.server.ollama.bodies import OllamaChatBody, Options
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.conftest import ROOT
from tests.reader_edge.server.conftest import Served

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
    if body is None or not body.get("stream"):
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
