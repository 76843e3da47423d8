"""Markdown tables and the description of the machine, for all pages of results."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def gigabytes(record: Mapping[str, Any]) -> str:
    """A worker's memory at its highest; a dash where it was not measured."""
    return f"{record['peak_bytes'] / 1e9:.2f}" if "peak_bytes" in record else "-"


def machine() -> str:
    """The processor, its cores for us, its number formats and the memory; no names of hosts."""
    model, flags = "unknown processor", set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            flags = set(value.split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    formats = ", ".join(flag for flag in wanted if flag in flags)
    return f"{model}, {len(os.sched_getaffinity(0))} cores ({formats}), {kilobytes / 1e6:.0f} GB"
