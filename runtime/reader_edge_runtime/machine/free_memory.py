"""How much memory this machine, or the container on it, has left."""

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # a container's own, of the second version


def free_bytes() -> int | None:
    """Bytes that a process can still take, swap included; None where the system does not tell."""
    known = _meminfo()
    if "MemAvailable" not in known:
        return _left_of_container(0)
    swap = known.get("SwapFree", 0)
    left = _left_of_container(swap)
    of_machine = known["MemAvailable"] + swap
    return of_machine if left is None else min(of_machine, left)


def _meminfo() -> dict[str, int]:
    """Bytes by name."""
    if not _MEMINFO.is_file():
        return {}
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}


def _left_of_container(swap: int) -> int | None:
    """What its limit leaves, pages of files included: these give way. And what it may take of the machine's free swap.

    None without a limit.
    """
    try:
        fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        files = sum(int(fields.get(name, 0)) for name in ("active_file", "inactive_file", "slab_reclaimable"))
        left = max(0, _limit("memory") + files)
    except (OSError, ValueError):  # "max" is none
        return None
    try:
        return left + min(swap, max(0, _limit("memory.swap")))
    except (OSError, ValueError):
        return left + swap


def _limit(kind: str) -> int:
    """Bytes up to a limit. Raises OSError or ValueError where there is none."""
    limit, used = (int((_CGROUP / f"{kind}.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
    return limit - used
