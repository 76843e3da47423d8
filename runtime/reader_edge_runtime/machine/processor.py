"""The processor: what Linux tells of it, elsewhere little is known; and how much of it this process may use."""

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def num_usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The model's name on x86, the cores' part numbers on ARM."""
    named = {*_values("model name", cpuinfo), *_values("CPU part", cpuinfo)}
    return " ".join(sorted(named)) or f"{platform.machine()} {platform.processor()}"


def processor_flags(cpuinfo: Path = CPUINFO) -> set[str]:
    """What the processor can do, as /proc/cpuinfo calls it; empty where there is no such file."""
    values = _values("flags", cpuinfo) or _values("Features", cpuinfo)  # on x86, on ARM
    return set(values[0].split()) if values else set()


def has_saturating_sums(cpuinfo: Path = CPUINFO) -> bool:
    """Whether ONNX Runtime's usual kernels add int8 products in 16 bits here, where two may not fit.

    That is so on x86 with AVX2 and without VNNI. Elsewhere than on Linux it is taken not to be so.
    """
    flags = processor_flags(cpuinfo)
    return "avx2" in flags and not flags & {"avx_vnni", "avx512_vnni"}


def _values(name: str, cpuinfo: Path) -> list[str]:
    """The value that each core has of a field of /proc/cpuinfo; [] where there is no such file."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]
