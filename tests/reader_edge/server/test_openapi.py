"""The OpenAPI document tells what the server takes, no more and no less."""

from typing import Any

import pytest

from reader_edge.server.chat_completions import ChatWording
from reader_edge.server.completions import CompletionWording
from reader_edge.server.fields import IGNORED, Fields
from reader_edge.server.question import Question, QuestionWording
from reader_edge.server.responses import NEUTRAL, ResponseWording
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime.text.call_form import CallForm
from tests.reader_edge.server.conftest import Served


class TakenFields(Fields):
    """Remembers what it was asked for."""

    def __init__(self, values: dict[str, object]) -> None:
        super().__init__(values)
        self.taken: set[str] = set()

    def has(self, name: str) -> bool:
        self.taken.add(name)
        return super().has(name)

    def take(self, name: str) -> object:
        self.taken.add(name)
        return super().take(name)


def asked(document: Any, path: str) -> Any:
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize(
    ("path", "wording", "values"),
    [
        ("/v1/chat/completions", ChatWording(), {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", CompletionWording(), {"prompt": "Hi"}),
        ("/v1/responses", ResponseWording(), {"input": "Hi"}),
    ],
)
def test_fields_that_are_read_are_those_that_are_told(
    served: Served, path: str, wording: QuestionWording, values: dict[str, object]
) -> None:
    fields = TakenFields({"model": "demo", **values})
    Question.read(fields, wording, ServerSettings("demo"), CallForm())
    told = asked(served.get("/openapi.json").json(), path)
    neutral = set(NEUTRAL) - {"store"} if path == "/v1/responses" else set()  # these may say that nothing is asked
    assert fields.taken - neutral | IGNORED == set(told["properties"])
    assert set(told["required"]) == {"model", *values}


def test_limits_are_the_server_s_own(served: Served) -> None:
    schema = asked(served.get("/openapi.json").json(), "/v1/completions")
    token_ids = schema["properties"]["prompt"]["anyOf"][1]
    most = token_ids["items"]["maximum"]
    assert served.post("/v1/completions", {"model": "demo", "prompt": [most], "max_tokens": 1}).status_code == 200
    beyond = served.post("/v1/completions", {"model": "demo", "prompt": [most + 1], "max_tokens": 1})
    assert beyond.status_code == 400
    most = schema["properties"]["max_tokens"]["maximum"]
    assert served.post("/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": most + 1}).status_code == 400
