"""A server that takes drafts, devices before it, and their connections."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from reader_edge.remote import frames
from reader_edge.remote.connection import FrameConnection, LostError
from reader_edge.remote.frames import DRAFT_PATH, Ask, End, Tokens
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.remote.settings import Settings
from reader_edge.server.app import make_app
from reader_edge.server.resumable_answers import ResumableAnswers
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, DraftSources, Engine, EngineConfig, GenerationConfig, ServingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.remote_source import RemoteSource
from reader_edge_runtime.errors import RemoteError
from tests.conftest import make_as_new
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

LIMIT_S = 60.0
_LOST = object()


class AppConnection:
    """What a link sends over. status: of an answer that is no WebSocket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: Starlette, headers: dict[str, str]) -> None:
        self.status: int | None = None
        self.is_accepted = threading.Event()
        self.num_sent = 0
        self._loop = loop
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_cut = self._is_known = False
        sent = [(name.lower().encode(), value.encode()) for name, value in ({"host": "localhost"} | headers).items()]
        scope = {
            **{
                "type": "websocket",
                "path": DRAFT_PATH,
                "raw_path": DRAFT_PATH.encode(),
                "query_string": b"",
                "headers": sent,
            },
            **{"subprotocols": [], "scheme": "ws", "extensions": {"websocket.http.response": {}}},
        }
        self._put({"type": "websocket.connect"})
        self.served = asyncio.run_coroutine_threadsafe(self._serve(app, scope), loop)

    def send(self, message: bytes | str) -> None:
        if self._is_cut:
            raise EOFError
        self.num_sent += 1
        self._put({"type": "websocket.receive", "text" if isinstance(message, str) else "bytes": message})

    def recv(self, timeout: float | None = None) -> str | bytes:
        try:
            data = self._inbox.get(timeout=LIMIT_S if timeout is None else timeout)
        except queue.Empty:
            raise TimeoutError from None
        if data is _LOST or self._is_cut:
            self._inbox.put(_LOST)
            raise EOFError
        return bytes(data)

    def close(self) -> None:
        if not self._is_cut:
            self.cut(1000)

    def cut(self, code: int = 1006) -> None:
        """Nothing comes or goes any more, and the server hears of it."""
        self._is_cut = self._is_known = True
        self._inbox.put(_LOST)
        self._put({"type": "websocket.disconnect", "code": code})

    def send_and_leave(self, message: bytes) -> None:
        """Send a last message, and hear no answer."""
        self._is_cut = self._is_known = True
        self._put({"type": "websocket.receive", "bytes": message})
        self._put({"type": "websocket.disconnect", "code": 1006})

    def go_silent(self) -> None:
        """Nothing comes or goes any more, and the server does not hear of it."""
        self._is_cut = True
        self._inbox.put(_LOST)

    def _put(self, message: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._outbox.put_nowait, message)

    async def _serve(self, app: Starlette, scope: dict[str, Any]) -> None:
        await app(scope, self._outbox.get, self._send)
        self._inbox.put(_LOST)

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self._is_known:
            raise OSError  # as uvicorn does
        if message["type"] == "websocket.send":
            self._inbox.put(message["bytes"])
        elif message["type"] == "websocket.http.response.start":
            self.status = message["status"]
        elif message["type"] == "websocket.close":
            self._inbox.put(_LOST)
        self.is_accepted.set()


class DraftServer:
    """Serves an application to devices. connections: those that were made, the newest last."""

    def __init__(self, app: Starlette, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.loop = loop
        self.is_down = False
        self.connections: list[AppConnection] = []

    @property
    def answers(self) -> ResumableAnswers:
        """Those of its model."""
        loaded = self.app.state.pool.first.loaded
        return cast(ResumableAnswers, loaded.drafts.answers)

    def connection(self, **headers: str) -> AppConnection:
        made = AppConnection(self.loop, self.app, headers)
        assert made.is_accepted.wait(LIMIT_S)
        self.connections.append(made)
        return made

    def connect(self, url: str, key: str | None) -> FrameConnection:
        """As `connected`, for a RemoteEngine."""
        if self.is_down:
            raise LostError(f"Nothing answers at {url}.")
        return FrameConnection(self.connection(), url)


@contextmanager
def serving(app: Starlette) -> Iterator[DraftServer]:
    """The application in a loop of its own, started and shut down as servers do it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    lifespan = app.router.lifespan_context(app)
    asyncio.run_coroutine_threadsafe(lifespan.__aenter__(), loop).result(LIMIT_S)
    server = DraftServer(app, loop)
    try:
        yield server
    finally:
        for connection in server.connections:
            connection.cut()
        for connection in server.connections:
            connection.served.result(LIMIT_S)
        asyncio.run_coroutine_threadsafe(lifespan.__aexit__(None, None, None), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


ID = bytes(16)


def greeted(server: DraftServer, **headers: str) -> FrameConnection:
    link = FrameConnection(server.connection(**headers), "http://here")
    link.greet()
    return link


def ask(engine: Engine, mode: int = frames.HINTS, answer_id: bytes = ID, max_tokens: int = 40, **settings: Any) -> Ask:
    config = Settings.of(GenerationConfig(max_tokens=max_tokens, **settings))
    return Ask(answer_id, mode, config.encoded(), engine.encode_prompt("# tar"))


def answer_of(link: FrameConnection) -> list[int]:
    """The tokens up to the answer's end."""
    token_ids: list[int] = []
    while True:
        frame = link.receive(60)
        if isinstance(frame, End):
            return token_ids
        if isinstance(frame, Tokens):
            token_ids += frame.token_ids


def refused(link: FrameConnection) -> str:
    with pytest.raises(RemoteError) as shown:
        answer_of(link)
    assert str(shown.value).count("\n") == 0
    return str(shown.value)


SETTINGS = ServerSettings("demo", max_tokens=300)
Device = Callable[..., RemoteEngine]


@pytest.fixture(scope="session")
def hinted_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine that takes hints, of two slots, with a chat template."""
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("draft") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    config = EngineConfig(is_calibrated=False, max_batch=3)
    engine = Engine.load(package.folder, config, sources=DraftSources(extra=[RemoteSource()]))
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
