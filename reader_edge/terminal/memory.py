"""What this process holds in memory, mapped files included as far as they were touched."""

import re
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Resident memory now; on systems without /proc its peak, which is all they tell."""
    return _status_bytes("VmRSS") or _peak_by_usage()


def peak_bytes() -> int:
    """The most resident memory there has been; 0 where the system does not tell."""
    return _status_bytes("VmHWM") or _peak_by_usage()


def _status_bytes(field: str) -> int:
    """A field of /proc/self/status. Its peak is this program's own; getrusage's may be that of what started it."""
    if not _STATUS.is_file():
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _peak_by_usage() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
