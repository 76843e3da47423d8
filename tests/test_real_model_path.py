"""Where tests look for the real model: in the user's own cache, also from pytest's workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reader_edge.catalogue.store import StoredModel

_TOLD = """
import subprocess, sys
from tests import conftest
print(conftest._REAL_MODEL, flush=True)
if len(sys.argv) == 2:
    subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""


def test_a_worker_looks_for_the_real_model_where_its_parent_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = StoredModel("smollm2:135m").folder / "source" / "model.gguf"
    source.parent.mkdir(parents=True)
    source.touch()
    inherited = {name: value for name, value in os.environ.items() if name != "READER_EDGE_TESTS_MODEL"}
    environment = inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _TOLD, _TOLD]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert told.splitlines() == [str(source)] * 2
