"""Callers of a server: their keys, their caches, and what the server never does for them."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from reader_edge.remote.frames import Resume
from reader_edge.server.api_error import ApiError
from reader_edge.server.resumable_answers import ResumableAnswers, own_id
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.conftest import Served

WATCHED = (
    "open",
    "os.",
    "shutil.",
    "subprocess.",
    "socket.connect",
    "socket.getaddrinfo",
    "urllib.",
    "exec",
    "compile",
)
FREE_MEMORY = ("/proc/meminfo", "/sys/fs/cgroup/")  # looked at for every text, whatever it says
EVENTS: list[str] = []
_is_watching = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _is_watching and event.startswith(WATCHED) and not str(*arguments[:1]).startswith(FREE_MEMORY):
        EVENTS.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_hook)  # which stays for good, so it only looks on request


@contextmanager
def watching() -> Iterator[list[str]]:
    """What happens meanwhile."""
    global _is_watching
    EVENTS.clear()
    _is_watching = True
    try:
        yield EVENTS
    finally:
        _is_watching = False


PATHS = (
    "/etc/passwd",
    "../../../../etc/passwd",
    "file:///etc/passwd",
    "\\\\host\\share",
    "~/.ssh/id_rsa",
    "a\0b",
    "%2e%2e/x",
)
INJECTED = (
    "{{ ''.__class__.__mro__ }}",
    "{% include '/etc/passwd' %}",
    "${HOME}",
    "`id`",
    "$(id)",
    "'; import os; os.remove('x')",
)


def hostile_bodies(texts: Sequence[str] = (*PATHS, *INJECTED)) -> Iterator[tuple[str, Any]]:
    """Paths, addresses and code in every field that takes a text, and texts that are too deep to read."""
    chat, completions, responses = "/v1/chat/completions", "/v1/completions", "/v1/responses"
    for text in texts:
        messages = [{"role": "user", "content": text}]
        tool = {"type": "function", "function": {"name": "x", "description": text, "parameters": {"$ref": text}}}
        yield completions, {"model": "demo", "prompt": text, "max_tokens": 2}
        yield completions, {"model": text, "prompt": "a"}
        yield completions, {"model": "demo", "prompt": "a", "max_tokens": 2, "user": text, "stop": [text]}
        yield chat, {"model": "demo", "messages": messages, "max_tokens": 2}
        yield chat, {"model": "demo", "messages": [{"role": text, "content": text}], "max_tokens": 2}
        yield chat, {"model": "demo", "messages": messages, "tools": [tool], "max_tokens": 2}
        yield (
            chat,
            {
                "model": "demo",
                "messages": messages,
                "max_tokens": 2,
                "prediction": {"type": "content", "content": text},
            },
        )
        yield (
            chat,
            {
                "model": "demo",
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": text}}]}],
            },
        )
        yield chat, {"model": "demo", "messages": messages, "chat_template": text}
        yield responses, {"model": "demo", "input": text, "max_output_tokens": 16, "previous_response_id": text}
        yield responses, {"model": "demo", "input": text, "instructions": text, "max_output_tokens": 16}
    yield (
        chat,
        {"model": "demo", "messages": [{"role": "user", "content": "a", "deep": json.loads("[" * 400 + "]" * 400)}]},
    )


@pytest.mark.long
def test_no_request_reaches_the_file_system_another_program_or_the_network(served: Served) -> None:
    usual = [
        ("/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 2}),
        ("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/responses", {"model": "demo", "input": "a", "instructions": "b", "max_output_tokens": 16}),
    ]
    for path, body in usual:  # what is loaded once, is loaded now
        assert served.post(path, body).status_code == 200
    bodies = list(hostile_bodies())
    for path, body in hostile_bodies((PATHS[0], INJECTED[0])):
        served.post(path, body)
    with watching() as events:
        statuses = [served.post(path, body).status_code for path, body in bodies]
        gets = [
            served.get(path).status_code
            for path in ("/../../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "//etc/passwd")
        ]
    assert set(statuses) <= {200, 400, 404}
    assert statuses.count(200) >= len(PATHS)
    assert set(gets) <= {400, 404}
    assert events == []


def test_the_audit_sees_what_is_done(tmp_path: Any) -> None:
    with watching() as events:
        (tmp_path / "file").write_text("x")
    assert any(event.startswith("open") for event in events)
    with pytest.raises(FileNotFoundError), watching() as events:
        (tmp_path / "none").unlink()
    assert any(event.startswith("os.remove") for event in events)


KEYS = (b"a" * 32, b"b" * 32)
PROMPT = "# tar\n\n> Archiving utility."


@pytest.fixture
def guarded(async_engine: AsyncEngine) -> Iterator[Served]:
    async_engine.engine.forget()
    yield Served(async_engine, ServerSettings("demo", api_keys=KEYS))
    async_engine.engine.forget()


def ask(served: Served, key: bytes = b"", path: str = "/v1/completions", **fields: Any) -> tuple[str, int]:
    """Answer, and cached tokens of the prompt."""
    headers = {"Authorization": f"Bearer {key.decode()}"} if key else {}
    sent = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    body = {"model": "demo", "temperature": 0, "max_tokens": 60, **sent, **fields}
    answer = served.post(path, body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"]), answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_count_reveals_the_prompts_of_another_key(guarded: Served, path: str) -> None:
    sent = [ask(guarded, KEYS[number], path) for number in (0, 0, 1, 1)]
    assert len({text for text, _ in sent}) == 1
    assert [num_cached > 0 for _, num_cached in sent] == [False, True, False, True]


def test_what_is_drafted_comes_from_answers_to_the_same_key(guarded: Served) -> None:
    headers = [{"Authorization": f"Bearer {key.decode()}"} for key in KEYS]
    options = {"stream": True, "stream_options": {"include_sources": True}}
    body = {"model": "demo", "temperature": 0, "max_tokens": 60, "prompt": PROMPT} | options
    streams = [guarded.post("/v1/completions", body, headers=headers[number]).text for number in (0, 1, 0, 1)]
    assert ['"history"' in each for each in streams] == [False, False, True, True]


def test_the_operator_may_share_between_keys(async_engine: AsyncEngine) -> None:
    async_engine.engine.forget()
    served = Served(async_engine, ServerSettings("demo", api_keys=KEYS, shares_between_keys=True))
    first, other = (ask(served, key) for key in KEYS)
    assert first[0] == other[0]
    assert first[1] == 0 < other[1]


@pytest.mark.parametrize("keys", [(), KEYS[:1], KEYS])
@pytest.mark.parametrize("shares", [False, True])
def test_a_salt_separates_whatever_the_keys(async_engine: AsyncEngine, keys: tuple[bytes, ...], shares: bool) -> None:
    async_engine.engine.forget()
    served = Served(async_engine, ServerSettings("demo", api_keys=keys, shares_between_keys=shares))
    key = keys[0] if keys else b""
    sent = [ask(served, key, cache_salt=salt) for salt in ("one", "one", "two", None, None)]
    assert len({text for text, _ in sent}) == 1
    assert [num_cached > 0 for _, num_cached in sent] == [False, True, False, False, True]


def test_a_salt_of_one_key_is_none_of_another(guarded: Served) -> None:
    ask(guarded, KEYS[0], cache_salt="same")
    assert ask(guarded, KEYS[1], cache_salt="same")[1] == 0


def test_ollama_s_endpoints_keep_keys_apart_too(guarded: Served, async_engine: AsyncEngine) -> None:
    salts = set()
    for key in KEYS:
        body = {"model": "demo", "prompt": PROMPT, "stream": False, "options": {"num_predict": 4}}
        answer = guarded.post("/api/generate", body, headers={"Authorization": f"Bearer {key.decode()}"})
        assert answer.status_code == 200, answer.text
        salts |= {text.salt for text in async_engine.engine.decoder.slots.idle_texts() if text.token_ids}
    assert len(salts - {""}) == 2


def test_an_answer_that_waits_for_its_device_is_that_of_its_key() -> None:
    answers = ResumableAnswers(60)
    resume = Resume(bytes(16), 0, bytes(32))
    answers.add(own_id("a", resume.answer_id), object())  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="is not here any more"):
        answers.taken_up(own_id("b", resume.answer_id), resume)
    answers.check_new(own_id("b", resume.answer_id))
    with pytest.raises(ApiError, match="of this id already"):
        answers.check_new(own_id("a", resume.answer_id))
