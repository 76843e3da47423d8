"""The compiled kernels in this process: a shared library or an object file of the wheel's, or one compiled here.

A shared library is loaded by the system, an object file by LLVM, which comes with the extra `jit`. Both are code.
They are taken from this package, object files from the user's own cache folder too, and from nowhere else. A file's
name tells what it was compiled from, so that one of other sources is never taken.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from reader_edge_runtime.drafting.machine_code.compile_target import CompileTarget
from reader_edge_runtime.errors import DraftError
from reader_edge_runtime.machine.cache_folder import make_private, why_untrusted
from reader_edge_runtime.untrusted.user_input import read_bounded

_HERE = Path(__file__).parent
_MAX_BYTES = 1 << 26  # of an object file, which has some hundred thousand
_SOURCES = (
    *sorted(_HERE.parent.glob("kernels/*.py")),
    _HERE.parent / "sources" / "datastore" / "header.py",
    *(_HERE / name for name in ("arguments.py", "compiler.py", "compile_target.py")),
)


class KernelLibrary:
    """A shared library, by its path, or the machine code of an object file. It stays as long as the process lives."""

    def __init__(self, code: Path | bytes) -> None:
        self._find = _linked(code) if isinstance(code, Path) else _loaded_by_llvm(code)

    @classmethod
    @functools.cache
    def shared(cls) -> "KernelLibrary":
        """The library of this process; compiled first where it is not there, which takes half a minute."""
        return cls.found()

    @classmethod
    def found(cls) -> "KernelLibrary":
        """The wheel's, or one that is compiled here. Raises DraftError where there is none that this system loads."""
        if (linked := linked_library()) is not None:
            try:
                return cls(linked)
            except OSError as error:  # damaged, or made for another C library
                if importlib.util.find_spec("llvmlite") is None:
                    remedy = "install the wheel again, or pip install 'reader-edge[jit]'"
                    raise DraftError(
                        f"Nothing can be drafted: its kernels are not loaded ({error}); {remedy}."
                    ) from error
        return cls(machine_code())

    def address(self, name: str) -> int:
        """Where a kernel's code begins."""
        address = self._find(name)
        if not address:
            raise LookupError(f"No kernel {name} was compiled.")
        return address


def linked_library() -> Path | None:
    """The wheel's shared library for this machine; None where it has none, and LLVM has to load an object file."""
    path = (_HERE / object_name(CompileTarget.of_this_machine())).with_suffix(".so")
    return path if path.is_file() else None


def _linked(path: Path) -> Callable[[str], int]:
    """Where each function of a shared library begins, 0 for one that it has not."""
    library = ctypes.CDLL(str(path))

    def find(name: str) -> int:
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    return find


def _loaded_by_llvm(machine_code: bytes) -> Callable[[str], int]:
    from llvmlite import binding as llvm

    llvm.check_jit_execution()  # OSError where the system allows no new code: LLVM would end the process
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    return lambda name: int(engine.get_function_address(name))


def object_name(target: CompileTarget) -> str:
    """The file name of the kernels for a target, as compiled from the sources that are here."""
    sources = hashlib.sha256(b"\0".join(path.read_bytes() for path in _SOURCES)).hexdigest()
    return f"{target.name}-{sources[:16]}.o"


def sealed(machine_code: bytes) -> bytes:
    """What an object file holds: machine code, then its SHA-256. LLVM ends the process where an object is damaged."""
    return machine_code + hashlib.sha256(machine_code).digest()


def machine_code() -> bytes:
    """The object file for this machine, compiled if need be. Raises DraftError where that fails."""
    if importlib.util.find_spec("llvmlite") is None:
        raise DraftError("Nothing can be drafted: no wheel brought its kernels; pip install 'reader-edge[jit]'.")
    try:
        return _found_or_compiled(object_name(CompileTarget.of_this_machine()))
    except OSError as error:
        raise DraftError(f"Nothing can be drafted: its kernels were not compiled ({error}).") from error


def _found_or_compiled(name: str) -> bytes:
    if (found := intact(_HERE / name)) is not None:
        return found
    folder = cache_folder()
    if folder is not None:
        # No room, or no locks in this file system. One process compiles, and others wait for it.
        with suppress(OSError, NotImplementedError), FileLock(folder / "compiling.lock"):
            if fault := why_untrusted(folder / name, folder):
                warnings.warn(fault, stacklevel=2)
                (folder / name).unlink()
            return intact(folder / name) or _compiled(folder / name)
    with tempfile.TemporaryDirectory(prefix="reader-edge-") as own:
        return _compiled(Path(own) / name)


def intact(path: Path) -> bytes | None:
    """The machine code of an object file; None where there is none to read, or a damaged one."""
    try:
        content = read_bounded(path, _MAX_BYTES) if path.is_file() else b""  # a pipe may have no end
    except OSError:
        return None
    code = content[: -hashlib.sha256().digest_size]
    return code if code and sealed(code) == content else None


@functools.cache
def cache_folder() -> Path | None:
    """Where kernels that were compiled here are kept, made if need be; None where there is none to write and to trust.

    `NUMBA_CACHE_DIR`, or a folder in the user's cache. Warns of one that others may write.
    """
    root = os.environ.get("NUMBA_CACHE_DIR")
    own = Path(platformdirs.user_cache_dir("reader-edge", appauthor=False))
    folder = Path(root).absolute() if root else own / "kernels"
    if not folder.is_absolute():  # without a home: a place below whatever folder is the current one
        return None
    top = folder if root else own
    try:
        make_private(folder, top)
        fault = why_untrusted(folder, top)
    except OSError:
        return None
    if fault:
        warnings.warn(fault, stacklevel=2)
    return folder if not fault and os.access(folder, os.W_OK) else None


def _compiled(path: Path) -> bytes:
    """Compile in a process of low priority: in this one, compiling would hold the interpreter for seconds."""
    if not sys.executable:  # a program that Python is a part of
        raise DraftError("Nothing can be drafted: no Python compiles its kernels, install reader-edge from a wheel.")
    command = [sys.executable, "-P", "-m", f"{__package__}.compiler", str(path.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    outcome = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, start_new_session=True
    )
    if outcome.returncode:
        raise DraftError(f"Nothing can be drafted: its kernels were not compiled ({_last_line(outcome.stderr)}).")
    path.chmod(0o600)
    code = intact(path)
    if code is None:
        raise DraftError(f"Nothing can be drafted: its kernels were damaged on their way to '{path.parent}'.")
    return code


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "for an unknown reason")
