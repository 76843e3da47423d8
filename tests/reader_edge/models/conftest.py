"""A hub in this process, and a cache of the test's own."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest
from huggingface_hub import constants

REVISION = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves `files` as the model "owner/model".

    answer: what it says of the model instead of the truth.
    error: (status, code) that every download is answered with. question_error: the same, for questions.
    promised: other contents whose checksums it announces.
    break_after: bytes of weights after which the first download of them stops, until `go_on` is set, and then fails.
    downloads: (file, first byte) of each, in order.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.promised: dict[str, bytes] = {}
        self.answer: bytes | None = None
        self.error: tuple[int, str] | None = None
        self.question_error: tuple[int, str] | None = None
        self.break_after: int | None = None
        self.go_on = threading.Event()
        self.downloads: list[tuple[str, int]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def checksum(self, name: str) -> str:
        return hashlib.sha256(self.promised.get(name, self.files[name])).hexdigest()

    def description(self) -> bytes:
        """What the hub's interface says of the model."""
        if self.answer is not None:
            return self.answer
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": "0", "lfs": self._large(name)}
            for name, data in self.files.items()
        ]
        return json.dumps({"id": "owner/model", "sha": REVISION, "siblings": siblings}).encode()

    def _large(self, name: str) -> dict[str, object] | None:
        if name.endswith(".json"):
            return None
        return {"sha256": self.checksum(name), "size": len(self.files[name]), "pointerSize": 130}


class _Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> FakeHub:
        return cast(FakeHub, self.server)

    def do_HEAD(self) -> None:
        if self.hub.error:
            self._refuse(*self.hub.error)
        else:
            self._send_head(200, len(self.hub.files[self._name()]))

    def do_GET(self) -> None:
        if self.path.startswith("/api/") and self.hub.question_error:
            self._refuse(*self.hub.question_error)
        elif self.path.startswith("/api/models/owner/model"):
            body = self.hub.description()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif self.path.startswith("/api/"):
            self._refuse(404, "RepoNotFound")
        else:
            self._send_file()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass

    def _send_file(self) -> None:
        name = self._name()
        data = self.hub.files[name]
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.hub.downloads.append((name, begin))
        self._send_head(206 if begin else 200, len(data) - begin)
        if self.hub.break_after is not None and name.endswith(".safetensors"):
            self.wfile.write(data[begin : begin + self.hub.break_after])
            self.wfile.flush()
            self.hub.break_after = None
            self.hub.go_on.wait(60)
            self.close_connection = True
        else:
            self.wfile.write(data[begin:])

    def _name(self) -> str:
        return self.path.partition("?")[0].partition(f"/{REVISION}/")[2]

    def _send_head(self, status: int, num_bytes: int) -> None:
        self.send_response(status)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{self.hub.checksum(self._name())}"')
        self.send_header("Content-Length", str(num_bytes))
        self.end_headers()

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this test's models are stored in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reader-edge" / "models"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one small model, "owner/model", instead of the real one."""
    files = {
        "config.json": b'{"model_type": "llama"}',
        "model.safetensors": bytes(range(256)) * 400,
        "model.gguf": b"GGUF" * 1000,
        "README.md": b"# A model",
    }
    with FakeHub(files) as server:
        set_hub(monkeypatch, server.url)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.go_on.set()
        server.shutdown()


def set_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let huggingface_hub ask another hub, without the user's token, and write what it gets in small pieces."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
