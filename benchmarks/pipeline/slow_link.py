"""Slow links between boxes on one machine: network namespaces, and a relay that delays their IP packets.

For kernels without netem. Needs root and `ip`. `SlowLinks` makes the namespaces and enters the first; this module runs
the relay: `python -m benchmarks.pipeline.slow_link DEVICE...`, which reads milliseconds from its input, line by line.
"""

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 1, 0x1000
_MAX_PACKET, _INPUT = 65536, 0


class SlowLinks:
    """hosts: addresses of the boxes, of which this process is the first from then on. befores: what runs in each."""

    def __init__(self, num_boxes: int) -> None:
        self._names = [f"reader-edge-{os.getpid()}-{number}" for number in range(num_boxes)]
        self.hosts = [f"10.9.0.{number + 1}" for number in range(num_boxes)]
        self.befores = [("ip", "netns", "exec", name) for name in self._names]
        self._devices = [_tun(name, f"re{number}", self.hosts[number]) for number, name in enumerate(self._names)]
        relay = [sys.executable, "-m", "benchmarks.pipeline.slow_link", *map(str, self._devices)]
        self._relay = subprocess.Popen(relay, stdin=subprocess.PIPE, text=True, pass_fds=self._devices)
        _enter(self._names[0])

    def set_ms(self, milliseconds: float) -> None:
        """What every packet takes one way, from now on."""
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{milliseconds}\n")
        self._relay.stdin.flush()

    def close(self) -> None:
        self._relay.kill()
        self._relay.wait()
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=True)


def relay(devices: Sequence[int]) -> None:
    """Hand packets on to the box that their last address byte names, each so long after it came, until input ends."""
    delay_s, number, waiting = 0.0, 0, list[tuple[float, int, int, bytes]]()
    while True:
        rest_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for source in select.select([_INPUT, *devices], [], [], rest_s)[0]:
            if source == _INPUT:
                lines = os.read(_INPUT, 1024).splitlines()
                if not lines:
                    return
                delay_s = float(lines[-1]) / 1000
                continue
            packet, number = os.read(source, _MAX_PACKET), number + 1
            box = packet[19] - 1 if len(packet) > 19 and packet[0] >> 4 == 4 else len(devices)
            if box < len(devices):
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, devices[box], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(waiting)
            os.write(device, packet)


def _tun(namespace: str, name: str, host: str) -> int:
    """A device in a new namespace, for all other boxes' packets."""
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    _enter(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    for command in ("link set lo up", f"addr add {host}/24 dev {name}", f"link set {name} mtu 9000 up"):
        subprocess.run(["ip", *command.split()], check=True)
    _set_here(home)
    os.close(home)
    return device


def _enter(namespace: str) -> None:
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    _set_here(there)
    os.close(there)


def _set_here(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
        raise SystemExit(f"Network namespaces cannot be entered ({os.strerror(ctypes.get_errno())}): this needs root.")


if __name__ == "__main__":
    relay(list(map(int, sys.argv[1:])))
