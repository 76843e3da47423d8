"""Which of the CPU provider's targets runs a package."""

from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.rows.rows_target import RowsTarget
from reader_edge_runtime.package.manifest import ROW_ATTENTIONS
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target


def open_on_host(package: ModelPackage, threads: int = 0, uses_native: bool = True) -> Target:
    """Arguments and errors: see `HostTarget.open`."""
    if package.manifest.attention in ROW_ATTENTIONS:
        return RowsTarget(HostRowsRunner(package, threads))
    return HostTarget.open(package, threads, uses_native)
