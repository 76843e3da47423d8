"""The kinds of processors that modules are compiled for. What is shipped names a level, never "this machine"."""

import platform
from dataclasses import dataclass

from reader_edge_runtime.machine.processor import processor_flags

# Without the last one the sums of exact attention become fp32, silently.
_ON_CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-demote-f64-to-f32=false",
)
IREE_ATTENTION = "portable-exact"
_V3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True, slots=True)
class TargetMachine:
    """name: as `--target` has it. flags: of the compiler.

    machine: of such processors, as Python names it. needs: flags of the processor in Linux's /proc/cpuinfo.
    """

    name: str
    flags: tuple[str, ...]
    machine: str
    needs: frozenset[str] = frozenset()

    @property
    def is_here(self) -> bool:
        """Whether this machine has such a processor, as far as is known."""
        flags = processor_flags()
        return machine_here() == self.machine and (not flags or self.needs <= flags)


def _x86_64(name: str, needs: set[str]) -> TargetMachine:
    flags = (*_ON_CPU, "--iree-llvmcpu-target-triple=x86_64-linux-gnu", f"--iree-llvmcpu-target-cpu={name}")
    return TargetMachine(name, flags, machine="x86_64", needs=frozenset(needs))


TARGETS = {
    target.name: target
    for target in (
        _x86_64("x86-64-v4", _V4),
        _x86_64("x86-64-v3", _V3),
        TargetMachine("aarch64", (*_ON_CPU, "--iree-llvmcpu-target-triple=aarch64-linux-gnu"), machine="aarch64"),
    )
}


def machine_here() -> str:
    """The kind of processor: x86_64, aarch64, or another as Python names it."""
    found = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(found, found)


def targets_here() -> list[TargetMachine]:
    """Those of this machine's processor, the best first."""
    return [target for target in TARGETS.values() if target.is_here]
