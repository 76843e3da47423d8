"""The lossless path is whole without the lossy wing: its folder may be deleted."""

import os
import subprocess
import sys

from tests.conftest import ROOT

# What a deleted folder would come to: whoever imports it fails.
_SCRIPT = """
import importlib, pkgutil, sys
sys.modules["reader_edge_lossy"] = None
import reader_edge, reader_edge_runtime
optional = {"zmq", "ray", "iree", "pydivsufsort", "matplotlib", "llguidance", "starlette", "uvicorn"}
num = 0
for package in (reader_edge_runtime, reader_edge):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith(("__main__", "_native")):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] in optional, error
        num += 1
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
engine = Engine.load("models/demo/package", EngineConfig(is_calibrated=False, threads=1))
print(num, len(engine.generate("# tar", GenerationConfig(8)).token_ids))
"""


def test_everything_else_is_imported_and_answers_without_the_folder() -> None:
    path = {"PYTHONPATH": ":".join(str(ROOT / part) for part in (".", "runtime", "export"))}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=ROOT,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    num_modules, num_tokens = map(int, done.stdout.split())
    assert num_modules > 250
    assert num_tokens == 8
