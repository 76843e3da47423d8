"""scripts/gpu_check: its whole way on the CPU, and one sentence where there is no GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT

SECTIONS = (
    "Machine",
    "Parity with the CPU provider",
    "verify, fp16",
    "verify, fp32, fast attention",
    "verify --guard, fp16, fast attention",
    "verify, tiny",
    "verify, tiny, repeated",
    "Passes, tiny",
    "Passes, tiny, repeated",
    "TensorRT",
    "Training a speculator",
    "Memory",
)


@pytest.mark.long
def test_the_tiny_check_goes_all_the_way_on_the_cpu(tmp_path: Path) -> None:
    done = _run("--provider", "cpu", "--tiny", "-o", str(tmp_path / "report.md"))
    report = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, report
    assert "all checks passed" in report
    assert re.findall("^## (.*)$", report, re.MULTILINE) == list(SECTIONS)
    assert len(re.findall(r"[1-9]\d* tokens compared, 0 divergences", report)) == 5
    assert len(re.findall(r"^\| (64|128) \| ([\d.]+ \([\d.]+\) \| ?){7}$", report, re.MULTILINE)) == 4
    assert "Left out: The installed wheel, onnxruntime" in report
    assert torch.cuda.is_available() or re.search(r"Left out: PyTorch \S+ sees no GPU\.", report)


@pytest.mark.long
def test_without_cuda_the_check_is_one_sentence(tmp_path: Path) -> None:
    """Holds on a machine with the CPU wheel, as in CI."""
    done = _run("-o", str(tmp_path / "report.md"))
    assert done.returncode == 1
    assert re.fullmatch(r"The installed wheel, onnxruntime .*'reader-edge\[gpu\]'\.\n", done.stderr)
    assert not list(tmp_path.iterdir())


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_check"), *arguments]
    # Tiny models gain nothing from threads, and lose much where other processes compete for the cores.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
