"""Resident memory of this process, now and at its peak; 0 where the system does not report it."""

import re
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Resident memory now; on systems without /proc its peak, which is all they tell."""
    return _bytes("VmRSS")


def peak_bytes() -> int:
    """The most resident memory there has been."""
    return _bytes("VmHWM")


def _bytes(field: str) -> int:
    if _STATUS.is_file():  # getrusage's peak may be that of what started this program
        found = re.search(
            rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE
        )
        return int(found[1]) * 1024 if found else 0
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
