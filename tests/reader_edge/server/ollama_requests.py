"""Requests of Ollama's interface, sent and read."""

import json
from typing import Any

from tests.reader_edge.server.conftest import Served

USER = {"role": "user", "content": "Hi"}
GREEDY = {"temperature": 0, "num_predict": 40}
CHAT = {"model": "demo", "messages": [USER], "options": GREEDY}
PROMPT = {"model": "demo", "prompt": "# tar\n", "raw": True, "options": GREEDY}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"place": {"enum": ["Paris", "Oslo"]}}, "required": ["place"]},
    },
}
DURATIONS = ("total_duration", "prompt_eval_duration", "eval_duration")


def whole(served: Served, path: str, body: dict[str, Any]) -> Any:
    response = served.post(path, body | {"stream": False})
    assert response.status_code == 200, response.text
    return response.json()


def lines(served: Served, path: str, body: dict[str, Any]) -> list[Any]:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def assert_refused(response: Any, status: int, words: str = "") -> None:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert "\n" not in response.json()["error"]
    assert words in response.json()["error"]
