"""An installation without the export extra, as the README's second command makes it."""

import os
import subprocess
import sys

_WITHOUT_EXPORT = """
import sys
from importlib.abc import MetaPathFinder

MISSING = {"gguf", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "optimum", "safetensors", "torch", "transformers"}

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import reader_edge.cli
import reader_edge_export
"""


def test_the_command_and_the_checks_before_an_export_need_nothing_of_the_export_extra() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXPORT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
