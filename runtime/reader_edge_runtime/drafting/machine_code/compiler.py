"""Compiles the kernels to one object file for all machines of this one's kind, by numba.

Its functions bear the kernels' names, take a word of 64 bits for each argument (kernels/kernel.py) and return one. They
call nothing but the C library and know nothing of Python: one file serves every version of Python, numpy and numba.

    python -m reader_edge_runtime.drafting.machine_code.compiler FOLDER
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
from filelock import FileLock
from llvmlite import binding as llvm
from numba.core import codegen, types

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.drafting import kernels
from reader_edge_runtime.drafting.kernels.kernel import Kernel, is_part, is_small_part
from reader_edge_runtime.drafting.machine_code.arguments import kernel_types, unpack
from reader_edge_runtime.drafting.machine_code.compile_target import CompileTarget
from reader_edge_runtime.drafting.machine_code.library import intact, object_name, sealed

# The caller keeps all arrays alive while a kernel runs, so no references are counted, and nothing can be allocated.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

# Calls a kernel as numba compiled it: the result, and what it would raise, by reference; its own result is a status.
_ENTRY = """
declare i32 @"{function}"(ptr, ptr, {words})
define i64 @"{name}"({words}) {{
    %result = alloca i64
    %error = alloca ptr
    store i64 0, ptr %result
    %status = call i32 @"{function}"(ptr %result, ptr %error, {arguments})
    %value = load i64, ptr %result
    ret i64 %value
}}
"""


class KernelCompiler:
    """All kernels in LLVM's intermediate form, not yet made for any machine. It takes half a minute to make."""

    def __init__(self) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._names: list[str] = []
        self._assembly: list[str] = []
        compiled = _compiled_functions()
        for kernel in _kernels():
            self._add(kernel, compiled[kernel.function])

    def object_for(self, target: CompileTarget) -> bytes:
        """The object file of a kind of machine."""
        machine = _machine(target)
        module = llvm.parse_assembly("")
        for assembly in self._assembly:
            part = llvm.parse_assembly(assembly)
            part.triple, part.data_layout = machine.triple, str(machine.target_data)
            module.link_in(part)
        for value in (*module.functions, *module.global_variables):
            if not value.is_declaration and value.name not in self._names:
                value.linkage = llvm.Linkage.internal
        _optimize(module, machine)
        return bytes(machine.emit_object(module))

    def _add(self, kernel: Kernel[..., Any], compiled: Callable[..., Any]) -> None:
        argument_types = kernel_types(kernel.function)
        unpacked = unpack(argument_types)

        def entry(words: tuple[int, ...]) -> Any:
            return compiled(*unpacked(words))

        dispatcher: Any = numba.njit(**_OPTIONS)(entry)
        dispatcher.compile((types.UniTuple(types.int64, len(argument_types)),))
        (result,) = dispatcher.overloads.values()
        if result.signature.return_type not in (types.int64, types.none):
            raise TypeError(f"Kernel {kernel.name} returns {result.signature.return_type}, not an int64.")
        function = result.fndesc.llvm_func_name
        words = ", ".join("i64" for _ in argument_types)
        arguments = ", ".join(f"i64 %{i}" for i in range(len(argument_types)))
        entry_text = _ENTRY.format(function=function, name=kernel.name, words=words, arguments=arguments)
        self._names.append(kernel.name)
        self._assembly += [result.library.get_llvm_str(), entry_text]


def _compiled_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """numba's version of each function of the kernels.

    numba looks up what a function calls among its globals, where plain Python stands: what is compiled is a copy, whose
    globals are its module's with compiled functions in place of plain ones.
    """
    compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
    spaces = []
    for module in _modules():
        spaces.append(space := dict(vars(module)))
        for value in vars(module).values():
            function = _marked_function(value)
            if function is not None and function.__module__ == module.__name__:
                copy = FunctionType(function.__code__, space, function.__name__)
                compiled[function] = numba.njit(**_OPTIONS, forceinline=is_small_part(function))(copy)
    for space in spaces:
        for name, value in space.items():
            space[name] = compiled.get(_marked_function(value), value)
    return compiled


def _marked_function(value: Any) -> Any:
    """The plain function of a kernel or of a part of one; None for anything else."""
    return value.function if isinstance(value, Kernel) else value if is_part(value) else None


def _modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
    return [importlib.import_module(f"{kernels.__name__}.{name}") for name in names]


def _kernels() -> list[Kernel[..., Any]]:
    """All kernels, each from the module that defines it."""
    found = {id(value): value for module in _modules() for value in vars(module).values() if isinstance(value, Kernel)}
    return sorted(found.values(), key=lambda kernel: kernel.name)


def _machine(target: CompileTarget) -> Any:
    """What makes machine code for a target: on Linux for a linker too, elsewhere to be loaded as numba's own is."""
    triple = target.triple or llvm.get_process_triple()
    of_triple = llvm.Target.from_triple(triple)
    if "linux" in triple:
        return of_triple.create_target_machine(target.cpu, reloc="pic", codemodel="small", opt=3)
    reloc = "static" if triple.startswith("x86") else "default"
    return of_triple.create_target_machine(target.cpu, reloc=reloc, opt=3, jit=True)


def _optimize(module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _make_no_code_for_this_process() -> None:
    """numba would make every function callable here as soon as it is compiled, which takes longer than all the rest."""
    internals: Any = codegen
    internals.JITCodeLibrary._finalize_specific = lambda library: None
    internals.JITCPUCodegen.set_env = lambda self, name, environment: None


def compile_into(folder: Path) -> Path:
    """Write the object file of this machine's kind, and return its path. Sets this process up for compiling."""
    os.environ["NUMBA_OPT"] = "0"  # numba would optimise for this very processor; LLVM does it once all is together
    _make_no_code_for_this_process()
    target = CompileTarget.of_this_machine()
    path = folder / object_name(target)
    write_file(path, sealed(KernelCompiler().object_for(target)))
    return path


def compile_if_missing(folder: Path) -> None:
    """Write the object file of this machine's kind, one process at a time.

    A compiler outlives a parent that was killed, and who starts next finds what it wrote.
    """
    with ExitStack() as held:
        with suppress(OSError, NotImplementedError):  # no locks in this file system
            held.enter_context(FileLock(folder / "compiler.lock"))
        if intact(folder / object_name(CompileTarget.of_this_machine())) is None:
            compile_into(folder)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    compile_if_missing(Path(sys.argv[1]))
