"""What libraries say of their own accord does not reach the user's terminal."""

import logging
import os
import subprocess
import sys

import pytest

from reader_edge_export.libraries import quiet_libraries
from reader_edge_runtime.machine.processor import num_usable_cores


def test_transformers_is_quiet_though_it_sets_its_level_meanwhile() -> None:
    root, inner = logging.getLogger("transformers"), logging.getLogger("transformers.integrations.hub_kernels")
    rope = logging.getLogger("transformers.modeling_rope_utils")  # speaks of a class's own defaults
    level = root.level
    try:
        with quiet_libraries():
            root.setLevel(logging.WARNING)  # as its first import does
            assert not inner.isEnabledFor(logging.WARNING)
            assert not rope.isEnabledFor(logging.WARNING)
            assert inner.isEnabledFor(logging.ERROR)
        assert logging.getLogger("transformers.integrations").level == logging.NOTSET
    finally:
        root.setLevel(level)


@pytest.mark.parametrize(
    ("named", "is_told"), [("", False), ("1", False), ("400", True), ("4,2", False), ("9" * 5000, False)]
)
def test_openmp_gets_no_more_threads_than_there_are_cores(named: str, is_told: bool) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": named}
    script = "import os, reader_edge_export; print(os.environ['OMP_NUM_THREADS'])"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    usable = num_usable_cores()
    assert done.stdout.strip() == (str(usable) if is_told else named)
    assert ("400 threads would wait for each other" in done.stderr) is is_told
