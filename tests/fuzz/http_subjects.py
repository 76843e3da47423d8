"""Bodies of requests: a handler reads what they hold and ask of a model, or refuses it in a sentence."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from reader_edge.server.completion import CompletionRequest
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.endpoints import (
    ANTHROPIC_ENDPOINTS,
    LLAMA_CPP_ENDPOINTS,
    OLLAMA_ENDPOINTS,
    OPENAI_ENDPOINTS,
    READING_ENDPOINTS,
    make_endpoints,
)
from reader_edge.server.json_body import load_json
from reader_edge.server.metrics import Metrics
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from tests.conftest import ROOT
from tests.fuzz.mutation import Subject, mutated_json
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.contract_cases import (
    ANTHROPIC_BODIES,
    BODIES,
    LLAMA_CPP_BODIES,
    OLLAMA_BODIES,
    READING_BODIES,
    all_cases,
)

_PATH, _BODY = "path", "body"
_OF_ANOTHER_MODEL = (*READING_ENDPOINTS, "/infill")


@cache
def _endpoints() -> tuple[Engine, Mapping[str, Endpoint[Any]]]:
    """The demo with a chat template, and its handlers by path."""
    with tempfile.TemporaryDirectory() as folder:
        package = PackageCopy(ROOT / "models" / "demo" / "package", Path(folder) / "demo")
        package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
        engine = Engine.load(package.folder, EngineConfig(is_calibrated=False))
    return engine, make_endpoints(AsyncEngine(engine), ServerSettings("demo"), Metrics())


@cache
def _cases() -> list[bytes]:
    """A body with each field of each object that there is."""
    return [
        _content(case.path, case.body)
        for endpoints, bodies in (
            *((OPENAI_ENDPOINTS, BODIES), (OLLAMA_ENDPOINTS, OLLAMA_BODIES), (ANTHROPIC_ENDPOINTS, ANTHROPIC_BODIES)),
            *((LLAMA_CPP_ENDPOINTS, LLAMA_CPP_BODIES), (READING_ENDPOINTS, READING_BODIES)),
        )
        for case in all_cases(endpoints, bodies)
    ]


def _content(path: str, body: object) -> bytes:
    return json.dumps({_PATH: path, _BODY: body}).encode()


def _samples(folder: Path) -> list[bytes]:
    bodies = {**BODIES, **OLLAMA_BODIES, **ANTHROPIC_BODIES, **LLAMA_CPP_BODIES}
    return [_content(path, body) for path, body in bodies.items() if path not in _OF_ANOTHER_MODEL]


def _spoilt(content: bytes, random: Random) -> bytes:
    return mutated_json(content if random.random() < 0.5 else random.choice(_cases()), random)


def _read(path: Path) -> None:
    """As far as prompts are token ids."""
    try:
        request = load_json(path.read_bytes())
    except (ValueError, RecursionError):
        return  # 400, for any body
    engine, endpoints = _endpoints()
    if not isinstance(request, dict) or request.get(_PATH) not in tuple(endpoints):
        return
    _, completion = endpoints[request[_PATH]]._read(request.get(_BODY))
    if isinstance(completion, CompletionRequest):
        for prompt in completion.prompts:
            engine.encode_prompt(prompt)


HTTP_SUBJECTS = {"body": Subject(_samples, _spoilt, _read)}
