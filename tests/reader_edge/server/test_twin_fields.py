"""Fields that mean the same: values that are equal are one, values that differ are refused by both names."""

from typing import Any

import pytest

from reader_edge.server.api_error import ApiError
from reader_edge.server.endpoints import ENDPOINTS
from reader_edge.server.ollama.bodies import OllamaChatBody, Options
from reader_edge.server.schema import decode
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.contract_cases import BODIES, OLLAMA_BODIES

CHAT, COMPLETION, RESPONSE = BODIES
OLLAMA_CHAT = next(iter(OLLAMA_BODIES))
FORM = {"type": "object", "maxProperties": 0}
FUNCTION = {"name": "time", "parameters": FORM}
TWINS: list[tuple[str, str, Any, str, Any, Any]] = [  # a path, two places, a value of both, another one of the second
    *((path, "repetition_penalty", 1.2, "repeat_penalty", 1.2, 1.3) for path in BODIES),
    (CHAT, "max_tokens", 3, "max_completion_tokens", 3, 4),
    (CHAT, "n", 2, "best_of", 2, 3),
    (CHAT, "reasoning_effort", "low", "chat_template_kwargs.reasoning_effort", "low", "high"),
    (CHAT, "enable_thinking", True, "chat_template_kwargs.enable_thinking", True, False),
    (CHAT, "reasoning_effort", "none", "enable_thinking", False, True),
    (CHAT, "add_generation_prompt", True, "chat_template_kwargs.add_generation_prompt", True, False),
    (CHAT, "messages.1.reasoning_content", "Hm.", "messages.1.reasoning", "Hm.", "Ha."),
    (CHAT, "tools.0.function.strict", False, "tools.0.strict", False, True),
    (RESPONSE, "reasoning.effort", "low", "reasoning_effort", "low", "high"),
    (RESPONSE, "enable_thinking", True, "chat_template_kwargs.enable_thinking", True, False),
    (OLLAMA_CHAT, "messages.1.tool_name", "time", "messages.1.name", "time", "date"),
    ("/api/show", "model", "demo", "name", "demo", "other"),
    ("/api/pull", "model", "demo", "name", "demo", "other"),
]


def body_of(path: str, *output: tuple[str, Any]) -> dict[str, Any]:
    """A right body in which these places say this."""
    body: dict[str, Any] = {"model": "demo", **BODIES.get(path, OLLAMA_BODIES.get(path, {}))}
    if path in (CHAT, OLLAMA_CHAT):
        body["messages"] = [*body["messages"], {"role": "assistant", "content": "Hm."}, body["messages"][0]]
        body["tools"] = [{"type": "function", "function": dict(FUNCTION)}]
    if path == OLLAMA_CHAT:
        body["options"] = {"num_predict": 1}
        body["messages"][1] = {"role": "tool", "content": "Noon."}
    elif path in BODIES:
        body["max_output_tokens" if path == RESPONSE else "max_tokens"] = 1
    for place, value in output:
        *outer, name = place.split(".")
        inside: Any = body
        for each in outer:
            inside = inside[int(each)] if each.isdigit() else inside.setdefault(each, {})
        inside[name] = value
    return body


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: f"{twins[0]}:{twins[1]}:{twins[3]}")
def test_twins_agree_or_are_refused_by_name(served: Served, twins: tuple[str, str, Any, str, Any, Any]) -> None:
    path, first, value, second, same, other = twins
    taken = served.post(path, body_of(path, (first, value), (second, same)))
    assert taken.status_code == 200, taken.text
    refused = served.post(path, body_of(path, (first, value), (second, other)))
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert "leave one out" in message or "leave it out" in message
    for place in (first, second):
        assert f"'{place.replace('.0.', '[].').replace('.1.', '[1].')}'" in message


def test_ollama_s_effort_may_stand_twice() -> None:
    options = Options(reasoning_effort="low")
    assert OllamaChatBody(think="low", options=options).template_args()["reasoning_effort"] == "low"
    assert OllamaChatBody(think=True, options=options).template_args()["reasoning_effort"] == "low"
    with pytest.raises(ApiError, match="'think' is 'high' and 'options"):
        OllamaChatBody(think="high", options=options).template_args()


@pytest.mark.parametrize("path", BODIES)
def test_either_name_of_a_penalty_says_how_much_it_is(path: str) -> None:
    for name in ("repetition_penalty", "repeat_penalty"):
        body: Any = decode(body_of(path, (name, 1.2)), ENDPOINTS[path].body_type)
        assert body.config(8).sampling.repetition_penalty == 1.2
    neither: Any = decode(body_of(path), ENDPOINTS[path].body_type)
    assert neither.config(8).sampling.repetition_penalty == 1.0


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_of_the_most_tokens_is_refused_as_it_was_given(served: Served, name: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
    assert served.post(CHAT, body | {name: 2}).json()["usage"]["completion_tokens"] == 2
    assert f"'{name}' is 0" in served.post(CHAT, body | {name: 0}).json()["error"]["message"]
