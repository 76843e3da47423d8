"""The kinds of machines that kernels are compiled for: a system and an architecture, any processor of it."""

import platform
import sys
from typing import NamedTuple


class CompileTarget(NamedTuple):
    """name: a part of the object file's. triple: LLVM's name of the kind; its own of this machine where that is empty.

    cpu: the least that the code asks for.
    """

    name: str
    triple: str = ""
    cpu: str = "generic"

    @classmethod
    def of_this_machine(cls) -> "CompileTarget":
        name = f"{sys.platform}-{platform.machine()}".lower()
        return TARGETS.get(name, cls(name))


# The kinds that wheels are made for. On Windows, too, LLVM loads objects of the format ELF.
TARGETS = {
    target.name: target
    for target in (
        CompileTarget("linux-x86_64", "x86_64-unknown-linux-gnu", "x86-64-v2"),
        CompileTarget("linux-aarch64", "aarch64-unknown-linux-gnu"),
        CompileTarget("darwin-arm64", "arm64-apple-darwin"),
        CompileTarget("win32-amd64", "x86_64-pc-windows-msvc-elf", "x86-64-v2"),
    )
}
