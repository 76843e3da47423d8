"""The kinds of machines that modules are compiled for. What is shipped names a level, never "this machine"."""

import platform
from dataclasses import dataclass

from reader_edge_runtime.machine.processor import processor_flags

# Without the last one the sums of exact attention become fp32, silently.
_ON_CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-demote-f64-to-f32=false",
)
# Vulkan promises neither int64 nor float64, and no more than 16 KiB of shared memory, which fused reductions pass.
_ON_DEVICE = (
    "--iree-input-demote-i64-to-i32",
    "--iree-input-demote-f64-to-f32",
    "--iree-dispatch-creation-enable-aggressive-fusion=false",
)
PROCESSOR_ATTENTION = "portable-exact"
_V3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True, slots=True)
class TargetMachine:
    """name: as `--target` has it. flags: of the compiler. driver: IREE's name of what runs it; "local" on a CPU.

    machine: of such processors, as Python names it; None of devices. needs: flags that Linux tells of the processor.
    """

    name: str
    flags: tuple[str, ...]
    driver: str = "local"
    machine: str | None = None
    needs: frozenset[str] = frozenset()

    @property
    def is_device(self) -> bool:
        """Whether modules run on something else than the processor: their passes see fixed numbers of KV rows."""
        return self.machine is None

    @property
    def attention(self) -> str:
        """Of packages for it: a device need not have float64, in which exact sums are."""
        return "portable" if self.is_device else PROCESSOR_ATTENTION

    @property
    def is_here(self) -> bool:
        """Whether this machine has such a processor, as far as it tells; true of devices, which are asked later."""
        if self.machine is None:
            return True
        flags = processor_flags()
        return machine_here() == self.machine and (not flags or self.needs <= flags)


def _x86_64(name: str, needs: set[str]) -> TargetMachine:
    flags = (*_ON_CPU, "--iree-llvmcpu-target-triple=x86_64-linux-gnu", f"--iree-llvmcpu-target-cpu={name}")
    return TargetMachine(name, flags, machine="x86_64", needs=frozenset(needs))


def _device(name: str, driver: str, *flags: str) -> TargetMachine:
    return TargetMachine(name, (f"--iree-hal-target-device={driver}", *_ON_DEVICE, *flags), driver)


TARGETS = {
    target.name: target
    for target in (
        _x86_64("x86-64-v4", _V4),
        _x86_64("x86-64-v3", _V3),
        TargetMachine("aarch64", (*_ON_CPU, "--iree-llvmcpu-target-triple=aarch64-linux-gnu"), machine="aarch64"),
        _device("vulkan", "vulkan"),
        _device("cuda", "cuda", "--iree-cuda-target=sm_75"),
        _device("rocm", "hip", "--iree-rocm-target=gfx1100"),
        _device("metal", "metal"),
    )
}


def machine_here() -> str:
    """The kind of processor: x86_64, aarch64, or another as Python names it."""
    found = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(found, found)


def targets_here() -> list[TargetMachine]:
    """Those of this machine's processor, the best first."""
    return [target for target in TARGETS.values() if target.machine is not None and target.is_here]
