"""What fails on a thread of ONNX Runtime ends as an error, and the process goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere than on Linux memory has no limit of this kind"),
]

VISIBLE = 1 << 19

# Attention of more rows than memory has room for the scores of, then of a few.
RUN = f"""
import resource
import numpy as np
from tests.runtime.execution.native.node_session import Input, node_session

def inputs(visible):
    keys = np.ones((1, 2, visible, 8), np.float32)
    query, mask = np.ones((1, 2, 33, 8), np.float32), np.zeros((1, 1, 33, visible), np.float32)
    return {{"input_0": query, "input_1": keys, "input_2": keys, "input_3": mask}}

session = node_session("ExactAttention", [Input(each, False) for each in inputs(4).values()], [1], {{"scale": 1.0}})
session.run(None, inputs(4))
large = inputs({VISIBLE})
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), resource.RLIM_INFINITY))
try:
    session.run(None, large)
except Exception as error:
    print(type(error).__name__, str(error).count("bad_alloc"))
print(session.run(None, inputs(4))[0].mean())
"""


def test_memory_at_its_end_on_a_thread_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Fail 1", "1.0"]
