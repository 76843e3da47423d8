"""A pull that is killed leaves nothing that looks whole, and the next one goes on from there."""

import os
import subprocess
import sys
import time

import pytest

from reader_edge.models.pull import pulled
from reader_edge.models.store import StoredModel
from tests.reader_edge.models.fake_hub import FakeHub

MAX_SECONDS = 120  # however busy the machine


@pytest.mark.skipif(sys.platform == "win32", reason="a killed process frees its lock later there")
def test_a_killed_pull_keeps_whole_files_and_leaves_nothing_half(hub: FakeHub) -> None:
    hub.break_after = 50_000
    code = (
        "from huggingface_hub import constants\n"
        "constants.DOWNLOAD_CHUNK_SIZE = 1000\n"
        "from reader_edge.cli import main\n"
        "main(['pull', 'owner/model'])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_ENDPOINT": hub.url}
    stored = StoredModel("owner/model")
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        end = time.monotonic() + MAX_SECONDS
        while not _has_weights(stored) and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
    assert stored.source() is None
    assert [part.what for part in stored.parts()] == ["unfinished download"]
    hub.go_on.set()
    assert (pulled("owner/model") / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert [name for name, _ in hub.downloads] == ["config.json", "model.safetensors", "model.safetensors"]
    assert [part.what for part in stored.parts()] == ["source"]
    assert sorted(path.name for path in stored.source().iterdir()) == ["config.json", "model.safetensors"]  # type: ignore[union-attr]


def _has_weights(stored: StoredModel) -> bool:
    return sum(part.num_bytes for part in stored.parts()) > 10_000
