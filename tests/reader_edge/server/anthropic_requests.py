"""Requests of Anthropic's interface, sent and read."""

import json
from typing import Any

from tests.reader_edge.server.conftest import Served

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = {"role": "user", "content": "What is tar?"}
BODY: dict[str, Any] = {"model": "demo", "max_tokens": 24, "temperature": 0, "messages": [USER]}
SCHEMA = {"type": "object", "properties": {"place": {"enum": ["Paris", "Oslo"]}}, "required": ["place"]}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}


def whole(served: Served, **fields: Any) -> Any:
    response = served.post(PATH, BODY | fields)
    assert response.status_code == 200, response.text
    return response.json()


def count(served: Served, **fields: Any) -> int:
    """The tokens of a prompt."""
    response = served.post(COUNT, {"model": "demo", "messages": [USER]} | fields)
    assert response.status_code == 200, response.text
    return int(response.json()["input_tokens"])


def events(served: Served, **fields: Any) -> list[Any]:
    response = served.post(PATH, BODY | fields | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = [part.split("\n") for part in response.text.removesuffix("\n\n").split("\n\n")]
    output = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [name for name, _ in parts] == [f"event: {each['type']}" for each in output]
    return output


def put_together(shown: list[Any]) -> Any:
    """The message that events tell."""
    message, texts = shown[0]["message"], dict[int, str]()
    for event in shown[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                delta = {name: value for name, value in event["delta"].items() if name != "type"}
                ((name, value),) = delta.items()
                if name == "partial_json":
                    texts[event["index"]] = texts.get(event["index"], "") + value
                else:
                    message["content"][event["index"]][name] += value
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for index, text in texts.items():
        message["content"][index]["input"] = json.loads(text)
    return message


def without_ids(message: Any) -> Any:
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {name: value for name, value in message.items() if name != "id"} | {"content": content}


def assert_refused(response: Any, status: int, words: str = "", kind: str = "") -> None:
    assert response.status_code == status, response.text
    refusal = response.json()
    assert set(refusal) == {"type", "error", "request_id"}
    assert refusal["type"] == "error"
    assert refusal["request_id"] == response.headers["request-id"]
    error = refusal["error"]
    assert set(error) == {"type", "message"}
    assert kind in ("", error["type"])
    assert error["message"].endswith(".")
    assert "\n" not in error["message"]
    assert words in error["message"]
