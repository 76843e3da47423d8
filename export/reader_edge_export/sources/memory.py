"""How much memory this machine has left."""

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def free_bytes() -> int | None:
    """Bytes that a process can still take, swap included; None where the system does not tell."""
    if not _MEMINFO.is_file():
        return None
    found = re.findall(r"^(?:MemAvailable|SwapFree):\s+(\d+) kB$", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    return sum(map(int, found)) * 1024 if found else None
