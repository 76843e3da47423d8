"""Checks of an environment that load nothing: wheels, cores, graphics processors, storage, other boxes."""

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from reader_edge_runtime.doctor.check_result import CheckResult, Severity
from reader_edge_runtime.doctor.environment import Environment
from reader_edge_runtime.machine.processor import cpu_quota

# Those that have the module onnxruntime; a plugin has one of its own.
_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
    "onnxruntime-webgpu",
)
_MODULE = "onnxruntime/__init__.py"


def check_wheels(environment: Environment) -> Iterator[CheckResult]:
    """Whether exactly one wheel is installed."""
    installed = _installed(environment)
    named = " and ".join(f"{name} {version}" for name, version in installed.items())
    if not installed:
        remedy = "pip install 'reader-edge[cpu]', or 'reader-edge[gpu]' for an NVIDIA GPU."
        yield CheckResult("wheels", Severity.BROKEN, "ONNX Runtime is not installed.", remedy)
    elif len(installed) > 1:
        yield CheckResult(
            "wheels",
            Severity.BROKEN,
            f"{named} are installed in one folder and overwrite each other's files.",
            f"pip uninstall {' '.join(installed)}, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'.",
        )
    else:
        yield CheckResult("wheels", Severity.WELL, f"{named} is the one ONNX Runtime here.")


def _installed(environment: Environment) -> dict[str, str]:
    """Versions by name, of wheels that own the module."""
    found = {name: environment.distribution(name) for name in _WHEELS}
    return {
        name: each.version
        for name, each in found.items()
        if each is not None and (each.files is None or _MODULE in map(str, each.files))
    }


_BUSY = 1.5  # programs that want to run, for each core


def check_cores(environment: Environment) -> Iterator[CheckResult]:
    """How many of the cores compute here, and whether they have time for it."""
    usable, quota = environment.num_allowed_cores, cpu_quota(environment.root)
    if quota is not None and quota < usable:
        number = max(1, int(quota))
        computing = "1 of them computes" if number == 1 else f"{number} of them compute"
        yield CheckResult(
            "cores",
            Severity.NOTE,
            f"A quota leaves this process {quota:g} of {usable} cores' time, so {computing}.",
            "Raise the container's limit of CPUs, if it is to have more.",
        )
    elif usable < environment.num_cores:
        yield CheckResult(
            "cores",
            Severity.NOTE,
            f"This process may run on {usable} of {environment.num_cores} cores.",
            "Widen its CPU affinity, or the container's set of CPUs, if it is to have more.",
        )
    else:
        yield CheckResult("cores", Severity.WELL, f"This process may use all of the {usable} cores.")
    load = _load(environment)
    if load > _BUSY * environment.num_cores:
        yield CheckResult(
            "load",
            Severity.SLOWER,
            f"Other programs keep the machine busy: a load of {load:.1f} on {environment.num_cores} cores.",
            "End them, or try again later: times that are measured meanwhile are too long.",
        )


def _load(environment: Environment) -> float:
    """Programs that ran or waited for a core in the last minute; 0 where the system does not tell."""
    words = (environment.text("proc/loadavg") or "").split()
    with suppress(ValueError, IndexError):
        return float(words[0])
    return 0.0


_CARDS = "sys/class/drm"


def check_graphics(environment: Environment) -> Iterator[CheckResult]:
    """Whether graphics processors are listed with their makers. No result where there are none."""
    cards = sorted(card.name for card in (environment.root / _CARDS).glob("card[0-9]*") if "-" not in card.name)
    nameless = [card for card in cards if environment.text(f"{_CARDS}/{card}/device/vendor") is None]
    if nameless:
        yield CheckResult(
            "graphics",
            Severity.NOTE,
            f"The system does not tell who made {', '.join(nameless)}, of which ONNX Runtime may warn.",
            "Nothing, on the CPU; engines for graphics processors need a driver that fills in device/vendor.",
        )
    elif not cards and environment.has("dev/dxg"):
        yield CheckResult(
            "graphics",
            Severity.NOTE,
            "Windows lends this Linux a graphics processor that is not listed in /sys, so some engines find none.",
            "Run reader-edge on Windows itself for those; the CPU, and CUDA, work here.",
        )


def check_cache(environment: Environment) -> Iterator[CheckResult]:
    """Whether what is measured can be kept."""
    folder = environment.cache
    if folder is None:
        found = "This user has no home folder, so there is no place for models, nor for what is measured."
        yield CheckResult("cache", Severity.BROKEN, found, "Set XDG_CACHE_HOME to a folder that can be written.")
        return
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder.root)
    try:
        tempfile.TemporaryFile(dir=existing).close()  # rights alone do not tell: a system may be read-only
    except OSError as error:
        found = f"The cache folder '{folder}' cannot be written ({error.strerror}): every start measures all again."
        remedy = "Make it writable, or set XDG_CACHE_HOME to a folder that is."
        yield CheckResult("cache", Severity.SLOWER, found, remedy)
    else:
        yield CheckResult("cache", Severity.WELL, "What is measured of this machine can be kept.")


def check_huge_pages(environment: Environment) -> Iterator[CheckResult]:
    """Whether memory may come in huge pages. No result where it may, or where the system has none."""
    if "[never]" in (environment.text("sys/kernel/mm/transparent_hugepage/enabled") or ""):
        yield CheckResult(
            "huge pages",
            Severity.NOTE,
            "Transparent huge pages are off, which makes large weights a little slower to read.",
            "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


_CONNECT_S = 3.0


def check_stages(addresses: Sequence[str]) -> Iterator[CheckResult]:
    """addresses: of each stage, with spaces between its boxes, of which one is enough."""
    for number, boxes in enumerate(addresses, 1):
        reasons = list(filter(None, map(_obstacle, boxes.split(" "))))
        if len(reasons) == len(boxes.split(" ")):
            found = f"Stage {number} cannot be reached at {', '.join(boxes.split(' '))} ({reasons[0]})."
            remedy = "Start it there with `reader-edge stage`, or correct its address in pipeline.json."
            yield CheckResult(f"stage {number}", Severity.BROKEN, found, remedy)
        else:
            yield CheckResult(f"stage {number}", Severity.WELL, f"Stage {number} listens.")


def _obstacle(address: str) -> str | None:
    """Why nothing listens at tcp://HOST:PORT; None where something does."""
    where = urlsplit(address)
    try:
        socket.create_connection((where.hostname, where.port), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        return str(error)
    return None
