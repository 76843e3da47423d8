"""A server of the demo model with a chat template, in this process, and its log's lines."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, ServingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from tests.conftest import make_as_new
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

LIMIT_S = 60  # that no test comes near


class Served:
    """What clients meet: one request a call, from a loop of its own."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, host: str = "localhost:8000") -> None:
        self.engine = engine
        self.app = make_app(engine, settings)
        self._host = host

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=f"http://{self._host}", timeout=LIMIT_S)

    def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **how)

        return asyncio.run(asyncio.wait_for(ask(), LIMIT_S))

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.request("GET", path, **how)

    def post(self, path: str, body: object, **how: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **how)

    def wait_until_idle(self) -> None:
        """Until what was given up is gone."""
        end = time.monotonic() + LIMIT_S
        while self.engine.num_running or self.engine.num_waiting:
            assert time.monotonic() < end
            time.sleep(0.01)

    def complete(self, **fields: Any) -> Any:
        """A completion, greedy by default."""
        response = self.post("/v1/completions", {"model": "demo", "prompt": "# tar", "temperature": 0} | fields)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="session")
def chat_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("chat") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    engine = Engine.load(package.folder, EngineConfig(is_calibrated=False))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


@pytest.fixture
def async_engine(chat_engine: Engine) -> Iterator[AsyncEngine]:
    make_as_new(chat_engine)
    engine = AsyncEngine(chat_engine, ServingConfig(max_waiting=4))
    yield engine
    asyncio.run(engine.close(cancels=True))
    assert not chat_engine.decoder.running


@pytest.fixture
def served(async_engine: AsyncEngine) -> Served:
    return Served(async_engine, ServerSettings("demo", max_tokens=500))


class RequestLines:
    """Those of a test."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "reader_edge.server.requests")

    @property
    def records(self) -> list[logging.LogRecord]:
        return [each for each in self._caplog.records if each.name == "reader_edge.server.requests"]

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [vars(each)["fields"] for each in self.records]

    def wait(self, num_lines: int) -> None:
        """Until there are so many: behind an answer over a real socket, its line comes a moment later."""
        end = time.monotonic() + LIMIT_S
        while len(self.fields) < num_lines:
            assert time.monotonic() < end
            time.sleep(0.01)

    def only(self) -> dict[str, Any]:
        """The fields of the only line."""
        (fields,) = self.fields
        return fields
