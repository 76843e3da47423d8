"""Kernels of every instruction set have the bits of the definitions: here, and where it is emulated."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_library
from tests.conftest import ROOT
from tests.runtime.execution.native.kernel_cases import write_cases
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = needs_kernels

CHECK = ROOT / "scripts" / "check_kernels"
ARM_ROOT = os.environ.get("READER_EDGE_ARM_ROOT")
needs_emulator = pytest.mark.skipif(
    ARM_ROOT is None or shutil.which("qemu-aarch64") is None,
    reason="no qemu-aarch64 (apt-get install qemu-user), or READER_EDGE_ARM_ROOT names no folder",
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    write_cases(folder)
    return folder


@pytest.mark.long
def test_every_instruction_set_here_has_the_bits_of_the_definitions(cases: Path, pytestconfig: pytest.Config) -> None:
    """At widths around those of tiles and registers; test_native.py has a whole model at every width."""
    names = instructions_here()
    assert names
    widths = range(1, 65) if pytestconfig.getoption("--every-combination") else [*range(1, 10), 15, 16, 17, 33, 63, 64]
    for name in names:
        options = ["--widths", *map(str, widths)]
        output = _check([sys.executable], cases, native_library(), *options, READER_EDGE_INSTRUCTIONS=name)
        assert output.startswith(f"{name}: {len(widths)} widths\n")


@needs_emulator
@pytest.mark.parametrize(
    ("processor", "expected"), [("cortex-a72", "neon"), ("cortex-a76", "neon-dot"), ("max", "neon-i8mm")]
)
def test_kernels_for_arm_have_the_bits_of_the_definitions(processor: str, expected: str, cases: Path) -> None:
    assert ARM_ROOT is not None
    root = Path(ARM_ROOT)
    emulated = ["qemu-aarch64", "-L", str(root), "-cpu", processor, str(root / "usr" / "bin" / "python3")]
    output = _check(emulated, cases, root / "reader_edge_native.so", "--widths", "1", "2", "7", "64")
    assert output.startswith(f"{expected}: 4 widths\n")


def _check(python: list[str], cases: Path, library: Path | None, *options: str, **environment: str) -> str:
    """What scripts/check_kernels says, which must find nothing that differs."""
    command = [*python, str(CHECK), str(cases), str(library), *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
