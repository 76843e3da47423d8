"""What several tests share: the demo package, and held-out documents it was not trained on."""

import atexit
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.drafting.drafter import RetrievalDrafter

ROOT = Path(__file__).parent.parent

# A shell's background job starts with Ctrl-C ignored, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The user's own cache stays out of the tests, in this process and in those that tests start. Compiled kernels alone are
# kept for the next run: compiling them takes half a minute, and their folder's name tells their version.
os.environ["NUMBA_CACHE_DIR"] = str(ROOT / ".cache" / "kernels")
_CACHE = tempfile.mkdtemp(prefix="reader-edge-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The bundled demo package."""
    return ROOT / "models" / "demo" / "package"


@pytest.fixture(scope="session")
def shared_engine(demo_folder: Path) -> Engine:
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False))  # else this machine's speed decides on drafts
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()  # else the first tests would draft nothing
    return engine


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """The demo engine, with nothing left over from other tests."""
    shared_engine.forget()
    yield shared_engine
    assert not shared_engine.decoder.running, "a test left a sequence running"
    assert not shared_engine.decoder.waiting, "a test left a sequence waiting"


@pytest.fixture(scope="session")
def held_out_texts() -> list[str]:
    """Documents the demo model was not trained on."""
    lines = (ROOT / "tests" / "data" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]
