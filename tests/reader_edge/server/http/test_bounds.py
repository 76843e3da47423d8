"""What clients may take together: memory for bodies, sockets for requests that do not come, places in line."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from threading import Thread

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from reader_edge.server import listening
from reader_edge.server.listening import Connection
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, GenerationConfig
from reader_edge_runtime.decoding.request import Request
from tests.reader_edge.server.conftest import LIMIT_S, Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

JSON = {"Content-Type": "application/json"}
START = b'{"model": "demo", "max_tokens": 3, "prompt": "'


def test_bodies_of_all_requests_have_a_bound_together(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", max_bodies_bytes=10_000))

    async def ask_all() -> list[httpx.Response]:
        shown = asyncio.Event()

        async def body(num_bytes: int) -> AsyncIterator[bytes]:
            yield START + b"a" * num_bytes
            await shown.wait()
            yield b'"}'

        async with served.client() as client:
            sent = [
                asyncio.create_task(client.post("/v1/completions", content=body(3000), headers=JSON)) for _ in range(3)
            ]
            await asyncio.sleep(0.2)
            refused = await client.post("/v1/completions", content=START + b"a" * 3000 + b'"}', headers=JSON)
            small = await client.post("/v1/completions", content=START + b'a"}', headers=JSON)
            shown.set()
            return [refused, small, *await asyncio.gather(*sent)]

    refused, small, *others = asyncio.run(asyncio.wait_for(ask_all(), LIMIT_S))
    assert_refused(refused, 429, "try again later")
    assert refused.headers["retry-after"] == "1"
    assert [response.status_code for response in (small, *others)] == [200] * 4
    for _ in range(4):  # what was answered takes no room any more
        again = served.request("POST", "/v1/completions", content=START + b"a" * 3000 + b'"}', headers=JSON)
        assert again.status_code == 200


def test_lower_priority_numbers_come_first(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GenerationConfig(max_tokens=2, ignores_eos=True)
    decoder = async_engine.engine.decoder
    started: list[int] = []
    admit = decoder.scheduler.admit

    def noted(request: Request) -> None:
        started.append(request.priority)
        admit(request)

    async def ask_all() -> None:
        loop = asyncio.get_running_loop()
        with async_engine.engine.working():
            priorities = [-(number // 2 % 3) for number in range(12)]
            tasks = [loop.create_task(async_engine.generate("# tar", config, priority)) for priority in priorities]
            while async_engine.num_waiting < len(tasks):
                await asyncio.sleep(0.01)
            monkeypatch.setattr(decoder.scheduler, "admit", noted)
            monkeypatch.setattr(decoder.slots, "_max_slots", 1)
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(ask_all(), LIMIT_S))
    assert started == [-2] * 4 + [-1] * 4 + [0] * 4


def test_a_request_names_its_priority(served: Served) -> None:
    assert served.complete(priority=-5)["choices"] == served.complete()["choices"]
    for wrong in ("high", 1.5, True):
        assert_refused(served.post("/v1/completions", {"model": "demo", "prompt": "a", "priority": wrong}), 400)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server whose clients get a second for a request."""
    monkeypatch.setattr(listening, "_REQUEST_S", 1.0)
    server = uvicorn.Server(uvicorn.Config(Starlette(), http=Connection, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = Thread(target=server.run, args=([place],))
        thread.start()
        yield place.getsockname()[1]
        server.should_exit = True
        thread.join(LIMIT_S)


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"G"] * 100,
        [b"GET / HTTP/1.1\r\n"] + [b"X: y\r\n"] * 100,
        [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n"] + [b"a"] * 100,
        [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET"] + [b"X"] * 100,
    ],
)
def test_a_client_that_sends_its_request_too_slowly_loses_its_connection(port: int, pieces: list[bytes]) -> None:
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        with suppress(OSError):  # it may go within a piece
            while pieces and is_open(client):
                client.sendall(pieces.pop(0))
        while is_open(client):
            assert time.monotonic() < start + LIMIT_S
    assert time.monotonic() - start > 0.9


def is_open(client: socket.socket) -> bool:
    """Whether the other side still listens a moment later."""
    client.settimeout(0.1)
    try:
        return client.recv(1000) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.long
def test_connections_beyond_those_that_get_a_refusal_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = uvicorn.Config(Starlette(), http=Connection, log_level="error", lifespan="off", limit_concurrency=10)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as place, ExitStack() as clients:
        thread = Thread(target=server.run, args=([place],))
        thread.start()
        opened = [clients.enter_context(socket.create_connection(place.getsockname())) for _ in range(30)]
        end = time.monotonic() + LIMIT_S
        while sum(map(is_open, opened)) > 12:
            assert time.monotonic() < end
        assert sum(map(is_open, opened)) == 12
        clients.close()
        server.should_exit = True
        thread.join(LIMIT_S)


def test_so_many_connections_are_taken_as_there_may_be_files(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: sent.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 100_000))
    assert listening.max_connections() == 1000
    assert sent == [(4000, 100_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (40, 40))
    assert listening.max_connections() == 13


@pytest.mark.long
def test_a_client_that_asks_again_and_again_keeps_its_connection(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(5):
            assert client.post("/", content=b"a" * 1000).status_code == 404
            time.sleep(0.3)
        assert client.get("/").status_code == 404
