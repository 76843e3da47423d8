"""A server that takes drafts, and devices before it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, DraftSources, Engine, EngineConfig, ServingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.device_source import DeviceSource
from tests.conftest import make_as_new
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.draft.app_connection import DraftServer, serving

SETTINGS = ServerSettings("demo", max_tokens=300)

Device = Callable[..., RemoteEngine]


@pytest.fixture(scope="session")
def hinted_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine that takes hints, of two slots, with a chat template."""
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("draft") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    config = EngineConfig(is_calibrated=False, max_batch=3)
    engine = Engine.load(package.folder, config, sources=DraftSources(extra=[DeviceSource()]))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


@pytest.fixture
def draft_server(hinted_engine: Engine) -> Iterator[DraftServer]:
    make_as_new(hinted_engine)
    engine = AsyncEngine(hinted_engine, ServingConfig(max_waiting=5))
    with serving(make_app(engine, SETTINGS)) as server:
        yield server
    assert not hinted_engine.decoder.running
    assert not hinted_engine.decoder.scheduler.parked


@pytest.fixture
def device(draft_server: DraftServer) -> Iterator[Device]:
    """Makes devices before that server."""
    made: list[RemoteEngine] = []

    def make(drafts: str = "hints", **options: Any) -> RemoteEngine:
        options = {"connect": draft_server.connect} | options
        made.append(RemoteEngine("http://localhost:8000", drafts=drafts, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
