"""Kill -9 during exports: does the next one end with the very bytes of an undisturbed one?

    python -m tests.durability.kill_exports [--source MODEL] [--precision int8] [--kills 30] [--interrupts 5] [--seed 0]

One export is left undisturbed. Others of the same model are killed, with their processes, at random moments: every
second one after a random time, the others when their journal has a random length. After each kill the export is run
again to its end. After Ctrl-C nothing may be left, and nothing is run again.
Exit code 1 where a package differs by a byte, or anything is left beside it.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from reader_edge_export.journal import JOURNAL_NAME, WORK_NAME

_DEMO = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
_POLL_S = 0.01
_RESUMED = "Resuming an export that was stopped: "


class Running:
    """The command that exports a model to `folder`/out. It is killed, with its processes, when the block is left."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._fields = folder, folder.with_suffix(".wrote")
        command = [sys.executable, "-m", "reader_edge", "export", *arguments, str(folder / "out")]
        with self._fields.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to all of its processes, and wait. Returns whether that ended it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        return self._process.wait() != 0

    def wait_for(self, is_due: Callable[[], bool]) -> None:
        """Until it is due, or the export has ended."""
        while self._process.poll() is None and not is_due():
            time.sleep(_POLL_S)

    def finish(self) -> str:
        """Wait for its end, which must be a good one, and return its output."""
        if self._process.wait() != 0:
            sys.exit(f"An export failed: {self.output}")
        return self.output

    @property
    def output(self) -> str:
        return self._fields.read_text()

    @property
    def stage(self) -> str:
        """What it is at."""
        lines = [line for line in self.output.splitlines() if line.startswith("Exporting ")]
        return lines[-1].rsplit(": ", 1)[-1] if lines else "starting"

    @property
    def num_noted(self) -> int:
        """How many lines its journal has."""
        journals = list(self._folder.glob(f".out.partial-*/{WORK_NAME}/{JOURNAL_NAME}"))
        try:
            return journals[0].read_bytes().count(b"\n") if journals else 0
        except FileNotFoundError:  # it has its name
            return 0


class Rounds:
    """Exports of one model: one that is not disturbed, and then others."""

    def __init__(self, arguments: list[str], folder: Path, seed: int) -> None:
        self._arguments = arguments
        self._folder = folder
        self._random = random.Random(seed)
        start, self.num_noted = time.perf_counter(), 0
        with Running(arguments, folder / "whole") as running:
            running.wait_for(lambda: self._has_noted(running.num_noted))
            running.finish()
        self.seconds = time.perf_counter() - start
        self._whole = contents(folder / "whole")

    def _has_noted(self, num_noted: int) -> bool:
        self.num_noted = max(num_noted, self.num_noted)
        return False

    def run(self, number: int, sent: signal.Signals) -> bool:
        """Disturb one, tell of it in a line of a table, and return whether all is as it should be."""
        folder, start = self._folder / str(number), time.perf_counter()
        due_s, due_lines = self._random.uniform(0, self.seconds), self._random.randint(1, self.num_noted)
        with Running(self._arguments, folder) as running:
            if number % 2:
                running.wait_for(lambda: running.num_noted >= due_lines)
            else:
                running.wait_for(lambda: time.perf_counter() - start >= due_s)
            passed_s, num_noted = time.perf_counter() - start, running.num_noted
            is_ended = running.send(sent) and not (folder / "out").exists()  # it may end late, with all done
            stage = running.stage
        if is_ended and sent == signal.SIGINT:
            left = [path.name for path in folder.iterdir()]
            gone_on, is_right = ", ".join(left) or "nothing is left", not left
        else:
            gone_on = self._finished(folder) if is_ended else "it had ended"
            is_right = contents(folder) == self._whole
        shutil.rmtree(folder)
        answer = "yes" if is_right else "NO"
        print(f"| {sent.name} | {passed_s:.1f} | {stage} | {num_noted} | {gone_on} | {answer} |", flush=True)
        return is_right

    def _finished(self, folder: Path) -> str:
        """Export again, to the end; what that went on with."""
        with Running(self._arguments, folder) as running:
            lines = running.finish().splitlines()
        resumed = [line.removeprefix(_RESUMED).removesuffix(".") for line in lines if line.startswith(_RESUMED)]
        return resumed[0] if resumed else "nothing"


def contents(folder: Path) -> dict[str, str]:
    """Checksums of the package `folder`/out, and what lies beside it."""
    beside = {path.name: "beside the package" for path in folder.iterdir() if path.name != "out"}
    return beside | {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "out").iterdir()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=str(_DEMO), help="default: the demo's checkpoint")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--check", default="quick")
    parser.add_argument("--calibration-text", help="a short one takes less time")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--interrupts", type=int, default=5, help="Ctrl-C in the place of a kill, after those")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and so would exports
    arguments = [options.source, "--precision", options.precision, "--check", options.check]
    if options.calibration_text is not None:
        arguments += ["--calibration-text", options.calibration_text]
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(arguments, Path(folder), options.seed)
        print(f"Undisturbed: {rounds.seconds:.0f} s, {rounds.num_noted} lines in the journal.\n")
        print("| signal | seconds | stage | lines | kept | right |\n|---|---|---|---|---|---|", flush=True)
        signals = [signal.SIGKILL] * options.kills + [signal.SIGINT] * options.interrupts
        results = [rounds.run(number, sent) for number, sent in enumerate(signals)]
    print(f"\n{results.count(True)} of {len(results)} are right.")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
