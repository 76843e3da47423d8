"""What the tests of models by name share: a cache of their own, and a hub on this machine."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.reader_edge.models.fake_hub import FakeHub


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
