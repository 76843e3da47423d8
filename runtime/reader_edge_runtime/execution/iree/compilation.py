"""MLIR -> a module, by IREE's compiler in a process of its own."""

import atexit
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reader_edge_runtime.errors import InstallationError, ProviderError
from reader_edge_runtime.execution.iree.target_machine import TargetMachine
from reader_edge_runtime.execution.iree.wheel import compiler_command, compiler_version

# Data tiling stays off: of some shapes its products are wrong, and every module packs the weights into memory of its
# own.
_FLAGS = ("--iree-opt-level=O3",)
_MAX_S = 1800
_MAX_REASON = 200
_LOW_PRIORITY = 10


def compile_module(mlir: Path, target: TargetMachine, is_aside: bool = False) -> bytes:
    """The module's bytes. is_aside: other work goes first.

    Raises InstallationError without the compiler, ProviderError.
    """
    command = compiler_command()
    if command is None:
        raise InstallationError("IREE's compiler is missing: pip install 'reader-edge[iree-export]'.")
    call = [*command, "-", "-o", "-", *_FLAGS, *target.flags]
    try:
        process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise ProviderError(f"IREE's compiler cannot be started ({error}).") from error
    with process, _ended_with_us(process):
        if is_aside and hasattr(os, "setpriority"):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _LOW_PRIORITY)
        try:
            module, output = process.communicate(mlir.read_bytes(), timeout=_MAX_S)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProviderError(f"IREE took more than {_MAX_S} s to compile '{mlir.name}'.") from error
            raise
    if process.returncode != 0 or not module:
        raise ProviderError(f"IREE cannot compile '{mlir.name}' for {target.name} ({_reason(output)}).")
    return module


def module_key(mlir: Path, target: TargetMachine) -> str:
    """24 hexadecimal digits, others for every graph, size, compiler, target and set of flags."""
    text = hashlib.sha256(mlir.read_bytes()).hexdigest()
    facts = [text, compiler_version(), target.name, *_FLAGS, *target.flags]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


@contextmanager
def _ended_with_us(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """A process that ends when this one does, and with it, without a word, the thread that waits for it."""
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        process.kill()

    atexit.register(end)
    try:
        yield
    finally:
        atexit.unregister(end)
        if is_over:
            raise SystemExit


def _reason(output: bytes) -> str:
    """The first error that the compiler tells of, in a form that can be shown."""
    lines = output.decode(errors="replace").splitlines() or ["no reason given"]
    first = next((line for line in lines if "error:" in line), lines[0])
    return "".join(char for char in first.rpartition("error: ")[2] if char.isprintable())[:_MAX_REASON]
