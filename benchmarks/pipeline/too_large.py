"""A model that one process may not hold, and two may: each gets the same bound.

    python -m benchmarks.pipeline.too_large PACKAGE --mb 400 [--stages 2]

The bound is on a process's own memory (RLIMIT_DATA, Linux). Prints what the whole package says to it, and what the
stages answer; exits 0 where one refuses in a sentence and the other gives the answer of an unbound process.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pipeline.served_stages import ServedStages

_ASKED = ("--prompt", "Explain tar to me.", "--max-tokens", "24", "--threads", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--mb", type=int, required=True, help="of each process's own memory")
    parser.add_argument("--stages", type=int, default=2)
    options = parser.parse_args()
    bound = ("prlimit", f"--data={options.mb * 10**6}")
    expected = _run((), options.package)
    alone = _run(bound, options.package)
    print(f"one process of {options.mb} MB: exit {alone.returncode}, {alone.stderr.strip()}")
    with tempfile.TemporaryDirectory() as place:
        folder, befores = Path(place) / "stages", [bound] * (options.stages - 1)
        with ServedStages(options.package, folder, options.stages, before=befores) as stages:
            together = _run(bound, stages.folder)
    told = together.stdout.strip() or together.stderr.strip()
    print(f"{options.stages} processes of {options.mb} MB: exit {together.returncode}, {told!r}")
    is_shown = alone.returncode == 1 and alone.stderr.startswith("Error: ") and together.stdout == expected.stdout
    sys.exit(not (is_shown and expected.returncode == together.returncode == 0))


def _run(bound: tuple[str, ...], package: Path) -> "subprocess.CompletedProcess[str]":
    command = [*bound, sys.executable, "-m", "reader_edge", "run", str(package), *_ASKED]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
