"""scripts/check_symbols finds what the linker could take from the wrong instruction set."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

CHECK = ROOT / "scripts" / "check_symbols"

pytestmark = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("nm")), reason="no C++ compiler, or no nm (apt-get install g++)"
)

OWN = "namespace reader_edge::some { [[gnu::noinline]] inline int own(int x) { return x + 1; } }\n"
SHARED = "namespace reader_edge { [[gnu::noinline]] inline int shared(int x) { return x + 2; } }\n"
CALLERS = "int first(int x) { return reader_edge::some::own(x); }\n"
OTHER_CALLERS = "int second(int x) { return reader_edge::shared(x); }\n"


@pytest.mark.parametrize(
    ("source", "expected"), [(OWN + CALLERS, 0), (OWN + SHARED + CALLERS + OTHER_CALLERS, 1), (None, 1)]
)
def test_a_weak_symbol_outside_the_namespace_of_its_set_is_found(
    source: str | None, expected: int, tmp_path: Path
) -> None:
    if source is not None:
        folder = tmp_path / "CMakeFiles" / "some.dir" / "src" / "kernels"
        folder.mkdir(parents=True)
        compiler = ["c++", "-std=c++17", "-O2", "-c", "-x", "c++", "-", "-o", str(folder / "some.o")]
        subprocess.run(compiler, input=source, text=True, check=True)
    done = subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True)
    assert done.returncode == expected, done.stdout + done.stderr
    assert ("reader_edge::shared(int)" in done.stdout) == (source is not None and expected == 1)
