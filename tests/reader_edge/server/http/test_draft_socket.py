"""WebSockets are there for drafts alone; a device answers over a real one."""

import asyncio
import importlib.util
import logging
import socket
import threading

import pytest
import uvicorn
from starlette.applications import Starlette

from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.server.http import listening
from reader_edge.server.http.listening import Connection
from reader_edge_runtime import GenerationConfig
from tests.reader_edge.server.conftest import LIMIT_S, Served

_REFUSED = "without completing handshake"
UPGRADE = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


class Upgraded(asyncio.Protocol):
    """In the place of uvicorn's protocol of WebSockets."""

    def __init__(self, config: object, server_state: object, app_state: object) -> None:
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"a socket")
        self.transport.close()


def test_only_drafts_get_a_socket() -> None:
    config = uvicorn.Config(Starlette(), http=Connection, ws=Upgraded, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        answers = []
        for path in (b"/v1/draft", b"/", b"/v1/draft/x"):
            with socket.create_connection(place.getsockname(), LIMIT_S) as connection:
                connection.sendall(UPGRADE % path)
                answers.append(connection.recv(100))
        server.should_exit = True
        thread.join(LIMIT_S)
    assert answers[0] == b"a socket"
    assert all(answer.startswith(b"HTTP/1.1 404") for answer in answers[1:])


def test_a_socket_that_is_refused_is_no_fault_in_the_log(served: Served) -> None:
    listening.Server(served.app, served.engine)
    log = logging.getLogger("uvicorn.error")
    told = [log.filter(logging.makeLogRecord({"msg": f"ASGI callable returned {how}."})) for how in ("early", _REFUSED)]
    assert [bool(each) for each in told] == [True, False]


@pytest.mark.skipif(importlib.util.find_spec("websockets") is None, reason="needs websockets, of the extra 'remote'")
def test_a_device_answers_over_a_real_socket(served: Served) -> None:
    async def serve(place: socket.socket) -> None:
        await server.serve([place])

    with listening.open_socket("127.0.0.1", 0) as place:
        server = listening.Server(served.app, served.engine)
        thread = threading.Thread(target=lambda: asyncio.run(serve(place)))
        thread.start()
        port = place.getsockname()[1]
        wanted = served.complete(max_tokens=30)["choices"][0]["text"]
        for drafts in ("none", "hints", "verify"):
            with RemoteEngine(f"http://127.0.0.1:{port}", drafts=drafts) as engine:
                assert engine.generate("# tar", GenerationConfig(max_tokens=30)).text == wanted
        server.should_exit = True
        thread.join(LIMIT_S)
