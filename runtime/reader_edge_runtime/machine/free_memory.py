"""How much memory this machine, or the container on it, has left."""

import re
from pathlib import Path

_MEMINFO = "proc/meminfo"
_CGROUP = "sys/fs/cgroup"  # a container's own, of the second version


def free_bytes(root: Path = Path("/"), has_swap: bool = True) -> int | None:
    """Bytes that a process can still take; None where the system does not tell.

    root: where its /proc and /sys are. has_swap: whether swap counts too.
    """
    known = _meminfo(root / _MEMINFO)
    cgroup = root / _CGROUP
    if "MemAvailable" not in known:
        return _left_of_container(cgroup, 0)
    swap = known.get("SwapFree", 0) if has_swap else 0
    left = _left_of_container(cgroup, swap)
    of_machine = known["MemAvailable"] + swap
    return of_machine if left is None else min(of_machine, left)


def _meminfo(file: Path) -> dict[str, int]:
    """Bytes by name."""
    if not file.is_file():
        return {}
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", file.read_text(encoding="ascii"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}


def _left_of_container(cgroup: Path, swap: int) -> int | None:
    """What its limit leaves, pages of files included: these give way. And what it may take of the machine's free swap.

    None without a limit.
    """
    try:
        fields = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        files = sum(int(fields.get(name, 0)) for name in ("active_file", "inactive_file", "slab_reclaimable"))
        left = max(0, _limit(cgroup, "memory") + files)
    except (OSError, ValueError):  # "max" is none
        return None
    try:
        return left + min(swap, max(0, _limit(cgroup, "memory.swap")))
    except (OSError, ValueError):
        return left + swap


def _limit(cgroup: Path, kind: str) -> int:
    """Bytes up to a limit. Raises OSError or ValueError where there is none."""
    limit, used = (int((cgroup / f"{kind}.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
    return limit - used
