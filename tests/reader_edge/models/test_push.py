"""Packages uploaded to a hub in this process: what goes there, and what a hub that refuses leads to."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from reader_edge.cli import main
from tests.reader_edge.models.conftest import set_hub
from tests.reader_edge.package_copy import PackageCopy


class TakingHub(ThreadingHTTPServer):
    """Takes files in commits. status: that it answers with. created: which repositories it made. files: taken."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return {"url": f"{self.url}/owner/model"}
        if path == "/api/models/owner/model/preupload/main":
            named = [each["path"] for each in json.loads(body)["files"]]
            return {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in named]}
        if path == "/api/models/owner/model/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitUrl": f"{self.url}/owner/model/commit/0123", "commitOid": "0123"}
        return {"warnings": [], "errors": []}  # of the metadata of a README


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hub = cast(TakingHub, self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.dumps(hub.answer(self.path.partition("?")[0], body) if hub.status == 200 else {}).encode()
        self.send_response(hub.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.send_response(cast(TakingHub, self.server).status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Iterator[TakingHub]:
    with TakingHub() as server:
        set_hub(monkeypatch, server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_what_belongs_to_a_package_is_uploaded_and_nothing_else(
    runner: CliRunner, package: PackageCopy, taking: TakingHub
) -> None:
    for name in ("README.md", "own_answers.bin", "notes.txt"):
        (package.folder / name).write_bytes(b"# A model\n")
    result = runner.invoke(main, ["push", str(package.folder), "owner/model", "--private"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{taking.url}/owner/model/commit/0123\n"
    assert "It goes without a model.sig, which `reader-edge package sign` writes." in result.stderr
    names = {"README.md", "reader_edge.json", *package.read_manifest()["files"]}
    assert taking.files == {name: (package.folder / name).read_bytes() for name in names}
    assert [each["visibility"] for each in taking.created] == ["private"]


@pytest.mark.parametrize(
    ("status", "words"), [(401, "log in with `hf auth login`"), (403, "as one who may write there"), (400, "try again")]
)
def test_a_hub_that_refuses_is_a_sentence(
    runner: CliRunner, package: PackageCopy, taking: TakingHub, status: int, words: str
) -> None:
    taking.status = status
    result = runner.invoke(main, ["push", str(package.folder), "owner/model"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"Error: The hub does not take 'owner/model' (status {status}): ")
    assert words in result.stderr


@pytest.mark.parametrize("name", ["model", "a/b/c", "owner/mo del"])
def test_no_other_name_is_taken(runner: CliRunner, package: PackageCopy, taking: TakingHub, name: str) -> None:
    result = runner.invoke(main, ["push", str(package.folder), name])
    assert result.exit_code == 1
    assert "give OWNER/NAME" in result.stderr
    assert taking.created == []


def test_a_damaged_package_stays_here(runner: CliRunner, package: PackageCopy, taking: TakingHub) -> None:
    (package.folder / "tokenizer.json").write_bytes(b"{}")
    assert runner.invoke(main, ["push", str(package.folder), "owner/model"]).exit_code == 1
    assert taking.created == []
