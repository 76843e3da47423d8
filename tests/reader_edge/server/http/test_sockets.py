"""Real sockets: requests, streams, and devices that draft."""

import asyncio
import errno
import importlib.util
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from reader_edge.remote import frames
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.server import listening
from reader_edge.server.listening import Connection
from reader_edge_runtime import GenerationConfig
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.server.conftest import LIMIT_S, RequestLines, Served

openai = pytest.importorskip("openai", reason="the official client is not installed: pip install 'reader-edge[dev]'")


MAX_SECONDS = 120  # however busy the machine
KEY = "a key nobody guesses".replace(" ", "-")
QUESTION: Any = [{"role": "user", "content": "What is tar?"}]
# A source tree is not installed: other processes must be given where pytest found the packages.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


class ServerProcess:
    """`reader-edge serve` with a key, at a free port."""

    def __init__(self, package: Path, key_file: Path) -> None:
        options = ["--port", "0", "--api-key-file", str(key_file), "--name", "demo", "--no-calibrate", "--threads", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reader_edge", "serve", str(package), *options],
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self.process.stderr is not None
        assert self.process.stderr.readline().endswith("Z INFO Loading 'demo'.\n")
        found = None
        while found is None and (line := self.process.stderr.readline()):  # what was measured has lines before
            found = re.search(r"at (http://127\.0\.0\.1:(\d+)):", line)
        assert found is not None
        self.port = int(found[2])
        self.url = f"{found[1]}/v1"
        self.reader = Thread(target=self.process.stderr.read, daemon=True)  # a full pipe would hold the server
        self.reader.start()

    def figure(self, name: str) -> float:
        """One of /metrics."""
        headers = {"Authorization": f"Bearer {KEY}"}
        response = httpx.get(f"http://127.0.0.1:{self.port}/metrics", headers=headers, timeout=MAX_SECONDS)
        return float(dict(line.rsplit(" ", 1) for line in response.text.splitlines())[name])

    def client(self, key: str = KEY) -> Any:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=MAX_SECONDS)


@pytest.fixture
def server(chat_package: PackageCopy, tmp_path: Path) -> Iterator[ServerProcess]:
    key_file = tmp_path / "keys"
    key_file.touch(0o600)
    key_file.write_text(KEY)
    server = ServerProcess(chat_package.folder, key_file)
    yield server
    server.process.kill()
    server.process.wait(timeout=MAX_SECONDS)
    server.reader.join(MAX_SECONDS)
    assert server.process.stderr is not None
    server.process.stderr.close()


def test_the_official_client_chats_streams_and_understands_refusals(server: ServerProcess) -> None:
    with server.client() as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        whole = client.chat.completions.create(
            model="demo", messages=QUESTION, temperature=0, max_completion_tokens=30, logprobs=True, top_logprobs=2
        )
        assert whole.usage.completion_tokens == 30
        assert whole.usage.completion_tokens_details.accepted_prediction_tokens >= 0
        assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
        stream = client.chat.completions.create(
            model="demo", messages=QUESTION, temperature=0, max_tokens=30, stream=True
        )
        pieces = [piece.choices[0] for piece in stream]
        assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
        assert pieces[-1].finish_reason == whole.choices[0].finish_reason == "length"
        text = client.completions.create(model="demo", prompt="# tar", max_tokens=5, temperature=0, n=2)
        assert len(text.choices) == 2
        with pytest.raises(openai.NotFoundError, match="ask for 'demo'"):
            client.completions.create(model="gpt-4", prompt="# tar")
        with pytest.raises(openai.BadRequestError, match="'suffix' is given, but the model here"):
            client.completions.create(model="demo", prompt="# tar", suffix="end")
        with pytest.raises(openai.BadRequestError, match="makes no embeddings"):
            client.embeddings.create(model="demo", input="tar")
    with server.client("a wrong key") as client, pytest.raises(openai.AuthenticationError, match="missing or wrong"):
        client.models.list()


def test_a_client_that_hangs_up_frees_its_slot_whether_it_reads_or_waits(server: ServerProcess) -> None:
    for is_streamed in (True, False):
        body = json.dumps({"model": "demo", "prompt": "# tar", "max_tokens": 4000, "stream": is_streamed}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=MAX_SECONDS) as connection:
            connection.sendall(head.encode() + body)
            if is_streamed:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        end = time.monotonic() + MAX_SECONDS
        while server.figure("reader_edge_requests_running") or server.figure("reader_edge_requests_waiting"):
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no SIGTERM")
def test_on_a_signal_it_finishes_the_answers_that_run_and_takes_no_more(server: ServerProcess) -> None:
    with server.client() as client:
        stream = iter(
            client.completions.create(model="demo", prompt="# tar", max_tokens=400, temperature=0, stream=True)
        )
        pieces = [next(stream)]
        server.process.send_signal(signal.SIGTERM)
        pieces += stream
    assert pieces[-1].choices[0].finish_reason == "length"
    server.process.wait(timeout=MAX_SECONDS)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system knows no such limit")
def test_a_client_that_reads_nothing_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_UNREAD_S", 1)
    with listening.open_socket("127.0.0.1", 0) as place, socket.create_connection(place.getsockname()):
        connection, _ = place.accept()
        connection.settimeout(MAX_SECONDS)
        with connection, pytest.raises(TimeoutError) as caught:
            connection.sendall(bytes(1 << 26))
        assert caught.value.errno == errno.ETIMEDOUT


@pytest.mark.long
def test_a_header_without_end_is_refused(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=MAX_SECONDS) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"a" * 100_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 4")


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


def test_only_drafts_get_a_socket_and_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_REQUEST_S", REQUEST_S)
    config = uvicorn.Config(Starlette(), http=Connection, ws=Upgraded, log_level="error", lifespan="off")
    listener = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=listener.run, args=([place],))
        thread.start()
        answers = []
        for path in (b"/v1/draft", b"/", b"/v1/draft/x"):
            with socket.create_connection(place.getsockname(), LIMIT_S) as connection:
                connection.sendall(UPGRADE % path)
                answers.append(connection.recv(100))
        listener.should_exit = True
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
        await listener.serve([place])

    with listening.open_socket("127.0.0.1", 0) as place:
        listener = listening.Server(served.app, served.engine)
        thread = threading.Thread(target=lambda: asyncio.run(serve(place)))
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        listener.should_exit = True
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
def test_a_device_needs_no_onnx_runtime(served: Served, url: str, demo_folder: Path, tmp_path: Path) -> None:
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
