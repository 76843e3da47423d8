"""Nothing in a request reaches the file system, another program or the network: Python's own audit says so."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

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
EVENTS: list[str] = []
_is_watching = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _is_watching and event.startswith(WATCHED):
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


def hostile_bodies() -> Iterator[tuple[str, Any]]:
    """Paths, addresses and code in every field that takes a text, and texts that are too deep to read."""
    chat, completions, responses = "/v1/chat/completions", "/v1/completions", "/v1/responses"
    for text in (*PATHS, *INJECTED):
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


def test_no_request_reaches_the_file_system_another_program_or_the_network(served: Served) -> None:
    usual = [
        ("/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 2}),
        ("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/responses", {"model": "demo", "input": "a", "instructions": "b", "max_output_tokens": 16}),
    ]
    for path, body in usual:  # what is loaded once, is loaded now
        assert served.post(path, body).status_code == 200
    bodies = list(hostile_bodies())
    for path, body in bodies:
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
