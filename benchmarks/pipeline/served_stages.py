"""A package split into stages, each but the last in a process of its own on this machine."""

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from reader_edge_export.split.split_package import split_package
from reader_edge_runtime.package.pipeline_file import KEY_NAME

FIRST_PORT = 15551  # below those that the system lends to connections


class ServedStages:
    """folder: of the pipeline, to be loaded as a model.

    before: what stands before each stage's command, as `ip netns exec`. hosts: where each listens, in turn.
    has_spares: whether each has a spare box, which is numbered behind all stages.
    """

    def __init__(
        self,
        package: Path,
        folder: Path,
        num_stages: int,
        hosts: Sequence[str] = (),
        before: Sequence[Sequence[str]] = (),
        threads: int = 1,
        has_spares: bool = False,
    ) -> None:
        self.folder = folder
        hosts = hosts or ["127.0.0.1"] * (num_stages - 1)
        port = FIRST_PORT + 10 * num_stages
        self.addresses = [f"tcp://{host}:{port + n}" for n, host in enumerate(hosts)]
        spares = [f"tcp://{host}:{port + 5 + n}" for n, host in enumerate(hosts)] if has_spares else [""] * len(hosts)
        self._before = before or [()] * (num_stages - 1)
        self._threads = threads
        self.processes: list[subprocess.Popen[str]] = []
        places = [f"{address} {spare}".strip() for address, spare in zip(self.addresses, spares, strict=True)]
        split_package(package, folder, num_stages, addresses=places)
        self.addresses += filter(None, spares)

    def __enter__(self) -> "ServedStages":
        self.processes = [self._started(number) for number in range(len(self.addresses))]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def kill(self, number: int) -> None:
        """Kill a stage, and start it again."""
        self.end(number)
        self.processes[number] = self._started(number)

    def end(self, number: int) -> None:
        """Kill a stage, whose box does not come back."""
        self.processes[number].kill()
        self.processes[number].wait()

    def stop(self, number: int) -> None:
        """Have a stage say nothing, as one whose box hangs."""
        self.processes[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGCONT)

    def _started(self, number: int) -> "subprocess.Popen[str]":
        stage = number % len(self._before)
        command = [sys.executable, "-m", "reader_edge", "stage", str(self.folder / str(stage + 1))]
        command += ["--listen", self.addresses[number], "--key", str(self.folder / KEY_NAME)]
        command += ["--threads", str(self._threads)]
        process = subprocess.Popen([*self._before[stage], *command], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        line = process.stderr.readline()
        if "listens at" not in line:
            raise SystemExit(f"A stage does not start: {line}{process.stderr.read()}")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        return process
