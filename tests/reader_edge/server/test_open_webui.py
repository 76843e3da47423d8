"""Requests shaped by the code of Open WebUI 0.12.4 (tests/data/README.md: it was not run) are all answered."""

import json
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.ollama.bodies import OllamaChatBody, Options
from tests.reader_edge.server.conftest import Served

REQUESTS = json.loads((Path(__file__).parents[2] / "data" / "open_webui_requests.json").read_text("utf-8"))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request_: request_["name"])
def test_requests_of_open_webui_are_answered(served: Served, request_: dict[str, Any]) -> None:
    path, body = request_["path"], request_["body"]
    response = served.request(request_["method"], path, json=body)
    assert response.status_code == 200, response.text
    assert '"error"' not in response.text
    if body is None:
        assert response.json()
    elif not body.get("stream"):
        assert response.json().get("done", True)
    elif path == "/api/chat":
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    else:
        assert response.text.endswith("data: [DONE]\n\n")


def test_repeat_penalty_is_repetition_penalty(served: Served) -> None:
    said = [
        served.complete(**{name: 1.5}, max_tokens=40)["choices"] for name in ("repeat_penalty", "repetition_penalty")
    ]
    assert said[0] == said[1] != served.complete(max_tokens=40)["choices"]


def test_reasoning_effort_among_options_reaches_the_template() -> None:
    assert OllamaChatBody(options=Options(reasoning_effort="low")).template_args() == {"reasoning_effort": "low"}
