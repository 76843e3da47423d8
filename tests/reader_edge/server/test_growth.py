"""What it takes to understand a request grows no faster than its body, in whatever it is that it has more of."""

import asyncio
import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from reader_edge.server.endpoint import Endpoint
from reader_edge.server.endpoints import make_endpoints
from reader_edge.server.json_body import load_json
from reader_edge.server.metrics import Metrics
from reader_edge.server.schema import without_gc
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Conversation, Engine
from reader_edge_runtime.decoding.sampling.grammar_worker.grammar_source import GrammarSource
from reader_edge_runtime.errors import ReaderEdgeError
from tests.family_tokenizers import family_engine

COUNT = 400  # of things in the smaller body
MORE = 8  # times as much of something
SLACK = 3  # beyond MORE: a quadratic step takes MORE times as much again
IDLE_S = 0.02  # below which times tell nothing
IDLE_BYTES = 1 << 20

Fields = dict[str, Any]
Grown = Callable[[int], Fields]

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "Hi"}
BASE: Mapping[str, Fields] = {
    CHAT: {"messages": [USER]},
    "/v1/completions": {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    "/api/chat": {"messages": [USER]},
    "/api/generate": {"prompt": "Hi"},
}


def texts(count: int, size: int = 1) -> dict[str, Any]:
    """Properties that are all the same."""
    return {f"p{number}": {"enum": ["x" * size]} for number in range(count)}


def branching(width: int, levels: int) -> Fields:
    """Definitions of which each chooses so often among the next, and the last among nothing."""
    names = [f"d{level}" for level in range(levels)]
    parts = {name: {"anyOf": [{"$ref": f"#/$defs/{below}"}] * width} for name, below in pairwise(names)}
    return {"$defs": {**parts, names[-1]: {"anyOf": []}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def chain(count: int) -> Fields:
    references = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(count)}
    return {"$defs": {**references, f"d{count}": {"type": "null"}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def shared(count: int, definition: Any) -> Fields:
    """Properties that all refer to one definition."""
    properties = {f"p{number}": {"$ref": "#/$defs/d"} for number in range(count)}
    return {"$defs": {"d": definition}, "properties": properties}


SCHEMAS: Mapping[str, Grown] = {
    "properties": lambda n: {"properties": texts(n)},
    "required keys": lambda n: {"properties": texts(n), "required": [f"p{number}" for number in range(n)]},
    "unknown required keys": lambda n: {"properties": texts(3), "required": [f"q{number}" for number in range(n)]},
    "definitions": lambda n: {"$defs": texts(n), "properties": {"a": {"$ref": "#/$defs/p0"}}},
    "definitions that every property needs": lambda n: {
        "$defs": {"d": {"type": "object", "properties": texts(n)}},
        "properties": {f"p{number}": {"$ref": "#/$defs/d"} for number in range(n)},
    },
    "references": lambda n: shared(n, {"type": "integer"}),
    "references to many types": lambda n: shared(n, {"type": ["string", "null"], **{f"x{i}": 1 for i in range(n)}}),
    "references to many values": lambda n: shared(n, {"enum": [*map(str, range(n)), None]}),
    "references to choices of nothing": lambda n: shared(n, {"anyOf": [{"anyOf": []}] * n}),
    "references to texts and many values": lambda n: shared(
        n, {"anyOf": [{"type": "string"}, {"enum": list(range(n))}]}
    ),
    "references to two lists of values": lambda n: shared(
        n, {"anyOf": [{"enum": [f"{name}{number}" for number in range(n)]} for name in "xy"]}
    ),
    "values beside others that are excluded": lambda n: {
        "properties": {"a": {"anyOf": [{"enum": list(map(str, range(n)))}, {"not": {"enum": list(range(n))}}]}}
    },
    "choices of required keys": lambda n: {
        "properties": texts(n),
        "anyOf": [{"required": [f"p{number}"]} for number in range(n)],
    },
    "patterns of many keys": lambda n: {
        "properties": {"a" * 60 + key: part for key, part in texts(n).items()},
        "patternProperties": {f"a*a*b{number}": {} for number in range(n)},
    },
    "references by long names": lambda n: {
        "properties": {str(number): {"$ref": "#/" + "a/" * n} for number in range(n // 100)}
    },
    "chain": chain,
    "enum": lambda n: {"properties": {"a": {"enum": list(range(n))}}},
    "anyOf": lambda n: {"properties": {"a": {"anyOf": [{"const": number} for number in range(n)]}}},
    "types": lambda n: {"properties": {"a": {"type": ["string", "null"] * n}}},
    "patterns": lambda n: {"properties": {"a": {"pattern": "a" * n}}},
    "description": lambda n: {"properties": {"a": {"description": "x" * (40 * n)}}},
    "unknown keywords": lambda n: {"properties": {"a": {f"x-{number}": [] for number in range(n)}}},
}
OF_ALL: Mapping[str, Grown] = {
    "stop": lambda n: {"stop": [f"s{number}" for number in range(n)]},
    "stop tokens": lambda n: {"stop_token_ids": list(range(n))},
    "biases": lambda n: {"logit_bias": {str(number): 1 for number in range(n)}},
    "an ignored field": lambda n: {"user": [[]] * (10 * n)},
    "unknown fields": lambda n: {f"x{number}": 1 for number in range(n)},
    "choices": lambda n: {"guided_choice": [f"c{number}" for number in range(n)]},
    "a schema's text": lambda n: {"guided_json": json.dumps({"properties": texts(n)})},
    "a regular expression": lambda n: {"guided_regex": "a" * (40 * n)},
    "a prediction": lambda n: {"prediction": {"type": "content", "content": [{"type": "text", "text": "x"}] * n}},
}
OF_CHATS: Mapping[str, Grown] = {
    "messages": lambda n: {"messages": [USER] * n},
    "long messages": lambda n: {"messages": [{"role": "user", "content": "x" * (40 * n)}]},
    "tools": lambda n: {"tools": [{"type": "function", "function": {"name": f"t{i}"}} for i in range(n)]},
    "template arguments": lambda n: {"chat_template_kwargs": {f"x{number}": number for number in range(n)}},
}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}
GROWN: Mapping[str, Mapping[str, Grown]] = {
    CHAT: {
        **OF_ALL,
        **OF_CHATS,
        "parts": lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * n}]},
        "calls": lambda n: {"messages": [USER, {"role": "assistant", "tool_calls": [CALL] * n}]},
        "arguments": lambda n: {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {"a": [[]] * n}}}]},
            ]
        },
        "metadata": lambda n: {"metadata": {str(number): "x" for number in range(n)}},
    },
    "/v1/completions": {
        **OF_ALL,
        "prompts": lambda n: {"prompt": ["x"] * n},
        "token ids": lambda n: {"prompt": list(range(n))},
        "prompts of token ids": lambda n: {"prompt": [[1]] * n},
        "text": lambda n: {"prompt": "x" * (40 * n)},
    },
    RESPONSES: {
        **OF_ALL,
        "items": lambda n: {"input": [{"type": "message", **USER}] * n},
        "calls": lambda n: {"input": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}] * n},
        "thoughts": lambda n: {
            "input": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}] * n
        },
        "parts": lambda n: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * n}]},
        "tools": lambda n: {"tools": [{"type": "function", "name": f"t{number}"} for number in range(n)]},
        "metadata": lambda n: {"metadata": {str(number): "x" for number in range(n)}},
    },
    "/api/chat": {
        "messages": lambda n: {"messages": [USER] * n},
        "calls and their answers": lambda n: {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}] * n},
                *[{"role": "tool", "tool_name": "f", "content": "x"}] * n,
            ]
        },
        "tools": OF_CHATS["tools"],
        "format": lambda n: {"format": {"properties": texts(n)}},
        "options": lambda n: {"options": {f"x{number}": 1 for number in range(n)}},
        "an ignored field": lambda n: {"truncate": [[]] * (10 * n)},
    },
    "/api/generate": {
        "text": lambda n: {"prompt": "x" * (40 * n)},
        "format": lambda n: {"format": {"properties": texts(n)}},
        "context": lambda n: {"context": list(range(n))},
    },
}
CASES = [(path, name) for path, grown in GROWN.items() for name in grown]


@pytest.fixture(scope="module", params=["qwen-coder", "qwen"])
def any_endpoints(shared_engine: Engine, request: pytest.FixtureRequest) -> Iterator[Mapping[str, Endpoint[Any]]]:
    """Of models whose calls are written in XML, and in JSON."""
    served = AsyncEngine(family_engine(shared_engine, request.param))
    yield make_endpoints(served, ServerSettings("demo"), Metrics(served))
    asyncio.run(served.close())


@pytest.fixture(scope="module")
def endpoints(shared_engine: Engine) -> Iterator[Mapping[str, Endpoint[Any]]]:
    served = AsyncEngine(family_engine(shared_engine, "qwen"))
    yield make_endpoints(served, ServerSettings("demo"), Metrics(served))
    asyncio.run(served.close())


def read(endpoint: Endpoint[Any], body: bytes) -> object:
    """What a request asks, or why it is refused."""
    try:
        return endpoint._read(load_json(body))
    except (ReaderEdgeError, RecursionError, ValueError) as refusal:
        return str(refusal)


def body_of(path: str, fields: Fields) -> bytes:
    return json.dumps({"model": "demo", **BASE[path], **fields}).encode()


def seconds(work: Callable[[], object]) -> float:
    """Of this thread's own, in the better of two."""
    times = []
    with without_gc():
        for _ in range(2):
            start = time.thread_time()
            work()
            times.append(time.thread_time() - start)
    return min(times)


def most_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_linear(small: Callable[[], object], large: Callable[[], object], growth: float) -> None:
    """growth: how many times as long the larger body is."""
    most = SLACK * max(growth, MORE)
    assert seconds(large) < most * max(seconds(small), IDLE_S / MORE)
    assert most_bytes(large) < most * max(most_bytes(small), IDLE_BYTES / MORE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ": ".join(case))
def test_twice_the_input_takes_twice_the_work(endpoints: Mapping[str, Endpoint[Any]], case: tuple[str, str]) -> None:
    path, name = case
    small, large = (body_of(path, GROWN[path][name](count)) for count in (COUNT, COUNT * MORE))
    endpoint = endpoints[path]
    assert_linear(lambda: read(endpoint, small), lambda: read(endpoint, large), len(large) / len(small))


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_of_tools_take_as_they_are_long(any_endpoints: Mapping[str, Endpoint[Any]], name: str) -> None:
    bodies = []
    for count in (COUNT, COUNT * MORE):
        function = {"name": "f", "parameters": {"type": "object", **SCHEMAS[name](count)}}
        bodies.append(body_of(CHAT, {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}))
    small, large = bodies
    endpoint = any_endpoints[CHAT]
    assert_linear(lambda: read(endpoint, small), lambda: read(endpoint, large), len(large) / len(small))


@pytest.mark.parametrize("width", [10, 100])
def test_definitions_that_branch_are_read_once_each(any_endpoints: Mapping[str, Endpoint[Any]], width: int) -> None:
    def work(levels: int) -> Callable[[], object]:
        function = {"name": "f", "parameters": {"type": "object", **branching(width, levels)}}
        body = body_of(CHAT, {"tools": [{"type": "function", "function": function}], "tool_choice": "required"})
        return lambda: read(any_endpoints[CHAT], body)

    assert_linear(work(6), work(6 * MORE), MORE)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_prepared_for_the_library_in_as_much_time_as_they_are_long(name: str) -> None:
    def work(count: int) -> Callable[[], object]:
        text = json.dumps({"type": "object", "x-guidance": {"lenient": True}, **SCHEMAS[name](count)})

        def prepare() -> None:
            with contextlib.suppress(ValueError):
                GrammarSource("json_schema", text)

        return prepare

    assert_linear(work(100), work(100 * MORE), MORE)


def test_definitions_that_branch_are_prepared_once_each() -> None:
    def work(levels: int) -> Callable[[], object]:
        text = json.dumps({"type": "object", **branching(20, levels)})
        return lambda: GrammarSource("json_schema", text)

    assert_linear(work(6), work(6 * MORE), MORE)


IGNORED: Mapping[str, Fields] = {
    CHAT: {"user": [[]] * 200_000, "messages": [USER | {"annotations": [[]] * 200_000}]},
    "/v1/completions": {"metadata": [[]] * 200_000, "stream_options": {"include_obfuscation": [[]] * 200_000}},
    RESPONSES: {"user": [[]] * 200_000, "reasoning": {"summary": [[]] * 200_000}},
    "/api/chat": {"truncate": [[]] * 200_000, "options": {"num_ctx": [[]] * 200_000}},
    "/api/generate": {"truncate": [[]] * 200_000},
}


@pytest.mark.parametrize("path", IGNORED)
def test_ignored_fields_are_not_kept_in_memory(endpoints: Mapping[str, Endpoint[Any]], path: str) -> None:
    body = body_of(path, IGNORED[path])
    read(endpoints[path], body)  # once for what is made but once
    tracemalloc.start()
    try:
        understood = read(endpoints[path], body)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert not isinstance(understood, str)
    assert kept < len(body) / 10


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/api/chat", "/api/generate"])
def test_a_conversation_is_dropped_once_it_is_encoded(endpoints: Mapping[str, Endpoint[Any]], path: str) -> None:
    understood = read(endpoints[path], body_of(path, {}))
    assert isinstance(understood, tuple)
    body, completion = understood
    assert all(getattr(body, name) is None for name in body.read_once)
    assert "messages" in body.read_once or "input" in body.read_once or "prompt" in body.read_once
    assert not any(isinstance(prompt, Conversation) for prompt in completion.without_prompts().prompts)
