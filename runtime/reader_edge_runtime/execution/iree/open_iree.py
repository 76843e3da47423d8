"""A package with MLIR, opened on IREE."""

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.iree.module_files import ModuleIndex
from reader_edge_runtime.execution.iree.target_machine import TARGETS, TargetMachine, machine_here, targets_here
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.execution.rows.rows_target import RowsTarget
from reader_edge_runtime.package.model_package import ModelPackage


def open_iree(package: ModelPackage, threads: int) -> RowsTarget:
    """Raises PackageError, ProviderError or InstallationError."""
    index = ModuleIndex.of(package)
    target = _target_for(package, index)
    from reader_edge_runtime.execution.iree.module_set import ModuleSet  # which imports IREE's runtime

    return RowsTarget(ModuleSet(package, index, target, threads).runner)


def _target_for(package: ModelPackage, index: ModuleIndex) -> TargetMachine:
    """What the package was compiled for, or this machine where that is another one and the compiler is here."""
    target = TARGETS[index.target]
    if target.is_here:
        return target
    here = targets_here()
    if here and compiler_version() is not None:
        return here[0]
    remedy = f"export it with --target {here[0].name}" if here else "use --provider cpu"
    raise ProviderError(
        f"'{package.folder}' is compiled for {target.name}, which this machine ({machine_here()}) is not: {remedy}, or "
        "pip install 'reader-edge[iree-export]', which compiles it here."
    )
