"""python -m tests.durability.kill_exports: what it shows of a small model, through two kills and a Ctrl-C."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(900)
def test_exports_that_are_killed_end_with_the_same_bytes(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat. " * 20)
    command = [
        "-m",
        "tests.durability.kill_exports",
        "--source",
        str(tiny_model("llama")),
        "--check",
        "none",
        "--calibration-text",
        str(text),
    ]
    result = subprocess.run(
        [sys.executable, *command, "--kills", "2", "--interrupts", "1"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *_, last = result.stdout.splitlines()
    assert last == "3 of 3 are right."
    assert result.stdout.count("| SIGKILL |") == 2
    assert result.stdout.count("| SIGINT |") == 1
