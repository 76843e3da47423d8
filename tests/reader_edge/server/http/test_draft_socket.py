"""WebSockets are there for drafts alone; a device answers over a real one."""

import asyncio
import importlib.util
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette

from reader_edge.remote import frames
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.server import listening
from reader_edge.server.listening import Connection
from reader_edge_runtime import GenerationConfig
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from tests.reader_edge.server.conftest import LIMIT_S, Served
from tests.reader_edge.server.http.request_lines import RequestLines

REQUEST_S = 0.3
_REFUSED = "without completing handshake"
UPGRADE = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
needs_websockets = pytest.mark.skipif(
    importlib.util.find_spec("websockets") is None, reason="needs websockets, of the extra 'remote'"
)


class Upgraded(asyncio.Protocol):
    """In the place of uvicorn's protocol of WebSockets."""

    def __init__(self, config: object, server_state: object, app_state: object) -> None:
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(2 * REQUEST_S, self._answer)

    def _answer(self) -> None:
        self.transport.write(b"a socket")
        self.transport.close()


def test_only_drafts_get_a_socket_and_keep_it_for_longer_than_a_request_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "_REQUEST_S", REQUEST_S)
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
    shown = [
        log.filter(logging.makeLogRecord({"msg": f"ASGI callable returned {how}."})) for how in ("early", _REFUSED)
    ]
    assert [bool(each) for each in shown] == [True, False]
    assert not logging.getLogger("asyncio").filter(logging.makeLogRecord({"msg": "socket.send() raised exception."}))


@pytest.fixture
def url(served: Served) -> Iterator[str]:
    """Where the server listens at a real socket."""

    async def serve(place: socket.socket) -> None:
        await server.serve([place])

    with listening.open_socket("127.0.0.1", 0) as place:
        server = listening.Server(served.app, served.engine)
        thread = threading.Thread(target=lambda: asyncio.run(serve(place)))
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        server.should_exit = True
        thread.join(LIMIT_S)


@needs_websockets
def test_a_malformed_handshake_is_a_line_of_the_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = RequestLines(caplog)
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client:
        client.sendall(UPGRADE % frames.DRAFT_PATH.encode())  # without a key
        assert client.recv(100).startswith(b"HTTP/1.1 4")
    lines.wait(1)
    line = lines.only()
    assert (line["path"], line["status"] // 100) == (frames.DRAFT_PATH, 4)
    assert line["error"] == "A handshake for a socket is malformed."


@needs_websockets
def test_a_device_answers_over_a_real_socket(served: Served, url: str) -> None:
    wanted = served.complete(max_tokens=30)["choices"][0]["text"]
    for drafts in ("none", "hints", "verify"):
        with RemoteEngine(url, drafts=drafts) as engine:
            assert engine.generate("# tar", GenerationConfig(max_tokens=30)).text == wanted


@needs_websockets
def test_a_device_needs_no_onnx_runtime_and_no_torch(
    served: Served, url: str, demo_folder: Path, tmp_path: Path
) -> None:
    """The commands of the page, as on a device that has the extra "remote" alone."""
    notes, datastore = tmp_path / "notes.txt", str(tmp_path / "notes.bin")
    wanted = served.complete(max_tokens=30)["choices"][0]["text"]
    notes.write_text("# tar" + wanted)
    build = ["datastore", "build", str(notes), "-o", datastore, "--force", "--tokenizer"]
    run = ["run", "--server", url, "--datastore", datastore, "--raw", "-p", "# tar", "-n", "30"]
    commands = [[*build, model] for model in (str(demo_folder), str(demo_folder / TOKENIZER_NAME), "owner/name")]
    commands += [["datastore", "search", datastore, "# tar", "--tokenizer", str(demo_folder)], run]
    code = f"""
import sys
sys.modules["onnxruntime"] = sys.modules["torch"] = None
from pathlib import Path
from reader_edge.models import model_source
from reader_edge.cli import main
model_source.pulled = {{"owner/name": Path({str(demo_folder)!r})}}.__getitem__
for command in {commands!r}:
    main(command, standalone_mode=False)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(3 * f"{datastore}\n")
    assert done.stdout.rstrip().endswith(wanted.rstrip())
