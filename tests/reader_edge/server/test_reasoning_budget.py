"""How much an answer may think: by whatever field a client says it, by its effort, or by the server's option."""

import json
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.ignored_fields import IGNORED_HEADER
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.server.clients.test_client_types import TEMPLATE
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

CHAT, COMPLETION, RESPONSE, MESSAGE, OLLAMA = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
)
USER = [{"role": "user", "content": "What is tar?"}]
LENGTH = 40
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": LENGTH, "enable_thinking": True},
    COMPLETION: {"prompt": "user: What is tar?\nassistant:<think>\n", "max_tokens": LENGTH},
    RESPONSE: {"input": "What is tar?", "max_output_tokens": LENGTH, "enable_thinking": True},
    MESSAGE: {"messages": USER, "max_tokens": LENGTH},
    OLLAMA: {"messages": USER, "options": {"num_predict": LENGTH, "temperature": 0}, "stream": False, "think": True},
}


@pytest.fixture(scope="module")
def engine_of(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    engines: dict[str, AsyncEngine] = {}

    def made(template: str) -> AsyncEngine:
        if template not in engines:
            package = PackageCopy(demo_folder, tmp_path_factory.mktemp("thinks") / "package")
            package.write_file("chat_template.jinja", template.encode())
            engines[template] = AsyncEngine(Engine.load(package.folder, EngineConfig(is_calibrated=False)))
        return engines[template]

    return made


def thought_of(engine: AsyncEngine, path: str, fields: dict[str, Any], most: int | None = None) -> str:
    """What an answer thinks. most: the server's option."""
    served = Served(engine, ServerSettings("demo", max_reasoning_tokens=most))
    temperature = {} if path == OLLAMA else {"temperature": 0}
    response = served.post(path, {"model": "demo", **temperature} | BODIES[path] | fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    if path == OLLAMA:
        return str(answer["message"].get("thinking", ""))
    if path == MESSAGE:
        return "".join(block.get("thinking", "") for block in answer["content"])
    if path == RESPONSE:
        return "".join(item["content"][0]["text"] for item in answer["output"] if item["type"] == "reasoning")
    if path == CHAT:
        return str(answer["choices"][0]["message"].get("reasoning_content", ""))
    return str(answer["choices"][0]["text"].partition("</think>")[0].strip())


@pytest.mark.parametrize(
    ("path", "fields", "most", "expected"),
    [
        *((path, {}, None, -1) for path in BODIES if path != COMPLETION),
        *((path, {}, 12, 12) for path in BODIES),
        *((CHAT, {name: 10}, None, 10) for name in ("thinking_budget_tokens", "reasoning_budget_tokens")),
        *((CHAT, {name: 10}, None, 10) for name in ("thinking_token_budget", "thinking_budget")),
        (CHAT, {"thinking_budget_tokens": 20}, 8, 20),
        (CHAT, {"thinking_budget_tokens": -1}, 8, -1),
        (CHAT, {"thinking_budget_tokens": 100}, 8, -1),
        (CHAT, {"enable_thinking": None, "thinking_budget_tokens": 0}, None, 0),
        (COMPLETION, {"thinking_budget_tokens": 10}, None, 10),
        (RESPONSE, {"thinking_budget_tokens": 10}, None, 10),
        (MESSAGE, {"thinking": {"type": "enabled", "budget_tokens": 10}}, 8, 10),
        (MESSAGE, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 8, -1),
        (MESSAGE, {"output_config": {"effort": "medium"}}, None, 20),
        (CHAT, {"reasoning_effort": "low"}, None, 8),
        (CHAT, {"reasoning_effort": "medium"}, None, 20),
        (CHAT, {"reasoning_effort": "high"}, None, 32),
        (CHAT, {"reasoning_effort": "high"}, 10, 10),
        (CHAT, {"reasoning_effort": "low", "thinking_budget_tokens": 30}, None, 30),
        (CHAT, {"reasoning_effort": "as you like"}, None, -1),
        (CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, None, 8),
        (RESPONSE, {"reasoning": {"effort": "low"}}, None, 8),
        (OLLAMA, {"think": "low"}, None, 8),
        (OLLAMA, {"think": "medium"}, None, 20),
    ],
)
def test_thoughts_end_where_a_request_or_the_server_has_them_end(
    engine_of: Any, path: str, fields: dict[str, Any], most: int | None, expected: int
) -> None:
    engine = engine_of(TEMPLATE.replace("{% if enable_thinking %}", "{% if enable_thinking is not false %}"))
    # What a chat's own budget of so many is, the test of usage says.
    limited = thought_of(engine, CHAT, {"thinking_budget_tokens": expected}) if expected else ""
    assert thought_of(engine, path, fields, most) == limited


def test_an_effort_that_the_template_knows_is_the_template_s(engine_of: Any) -> None:
    knows = engine_of(TEMPLATE + "{# reasoning_effort #}")
    whole = thought_of(knows, CHAT, {})
    assert thought_of(knows, CHAT, {"reasoning_effort": "low"}) == whole
    limited = thought_of(knows, CHAT, {"reasoning_effort": "low", "thinking_budget_tokens": 10})
    assert limited != whole.removeprefix(limited) != whole


def test_budgets_that_differ_are_refused(engine_of: Any) -> None:
    served = Served(engine_of(TEMPLATE), ServerSettings("demo"))
    body = {"model": "demo", **BODIES[CHAT], "thinking_token_budget": 10, "thinking_budget": 11}
    words = "'thinking_token_budget' is 10 and 'thinking_budget' 11, though they mean the same: leave one out."
    assert_refused(served.post(CHAT, body), 400, words)


def test_usage_counts_the_thoughts_and_the_mark_behind_them(engine_of: Any) -> None:
    engine = engine_of(TEMPLATE)
    served = Served(engine, ServerSettings("demo"))
    end = engine.engine.tokenizer.encode("</think>", adds_special_tokens=False)
    for budget in (0, 10, 20):
        fields = {"temperature": 0, **BODIES[CHAT], "thinking_budget_tokens": budget}
        answer = served.post(CHAT, {"model": "demo", **fields}).json()
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + len(end)
        assert answer["usage"]["completion_tokens"] == LENGTH
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((CHAT, {name: 10}) for name in ("thinking_budget_tokens", "thinking_budget")),
        (COMPLETION, {"reasoning_budget_tokens": 0}),
        (RESPONSE, {"thinking_token_budget": -1}),
        (MESSAGE, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ],
)
def test_a_model_that_does_not_think_has_them_among_the_fields_without_effect(
    async_engine: AsyncEngine, engine_of: Any, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": "demo", **BODIES[path], **fields}
    served = Served(async_engine, ServerSettings("demo"))
    assert json.loads(served.post(path, body).headers[IGNORED_HEADER]) == list(fields)
    assert f'reader_edge_ignored_fields_total{{name="{next(iter(fields))}"}} 1.0' in served.get("/metrics").text
    strict = Served(async_engine, ServerSettings("demo", refused_fields="all"))
    assert f"'{next(iter(fields))}' has no effect here" in strict.post(path, body).text
    assert IGNORED_HEADER not in Served(engine_of(TEMPLATE), ServerSettings("demo")).post(path, body).headers


def test_thinking_that_is_left_as_it_is_or_switched_off_has_its_effect(async_engine: AsyncEngine) -> None:
    for thinking in ({"type": "adaptive"}, {"type": "disabled"}):
        body = {"model": "demo", **BODIES[MESSAGE], "thinking": thinking}
        assert IGNORED_HEADER not in Served(async_engine, ServerSettings("demo")).post(MESSAGE, body).headers
