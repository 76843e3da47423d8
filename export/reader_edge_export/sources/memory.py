"""How much memory this machine, or the container on it, has left."""

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # a container's own, of the second version


def free_bytes() -> int | None:
    """Bytes that a process can still take, swap included; None where the system does not tell."""
    told = [free for free in (_free_of_machine(), _free_of_container()) if free is not None]
    return min(told, default=None)


def _free_of_machine() -> int | None:
    if not _MEMINFO.is_file():
        return None
    found = re.findall(r"^(?:MemAvailable|SwapFree):\s+(\d+) kB$", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    return sum(map(int, found)) * 1024 if found else None


def _free_of_container() -> int | None:
    """What its limit leaves, pages of files included: these give way. None without a limit."""
    try:
        limit, used = (int((_CGROUP / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, limit - used + int(fields["active_file"]) + int(fields["inactive_file"]))
    except (OSError, ValueError, KeyError):  # "max" is none
        return None
