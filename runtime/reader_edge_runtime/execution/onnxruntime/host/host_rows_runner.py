"""Opens packages on ONNX Runtime's CPU provider, also those whose graph returns new KV rows and writes none."""

from collections.abc import Mapping

from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.onnxruntime.session import RowsSession, open_session
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.execution.rows.rows_target import RowsResult, RowsTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME, ROW_ATTENTIONS
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target

_Bound = Mapping[str, ort.OrtValue]


class HostRowsRunner:
    """A `RowsRunner`, which other engines are compared with; trees are as wide as they are."""

    pass_sizes: tuple[int, ...] = ()

    def __init__(self, package: ModelPackage, threads: int = 0) -> None:
        """Raises ProviderError."""
        self.manifest = package.manifest
        self._session = RowsSession(open_session(package.path(GRAPH_NAME), threads), self.manifest)
        self.provider = self._session.provider
        self.pass_facts: tuple[str, ...] = (INSTALLED_WHEEL,)

    def width_for(self, num_nodes: int) -> int:
        return num_nodes

    def bound(self, past: Mapping[str, KvArray]) -> _Bound:
        return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in past.items()}

    def run(self, inputs: Inputs, bound: _Bound) -> RowsResult:
        return self._session.run(inputs, bound)


def open_on_host(package: ModelPackage, threads: int = 0, uses_native: bool = True) -> Target:
    """Arguments and errors: see `HostGraph.open`."""
    if package.manifest.attention in ROW_ATTENTIONS:
        return RowsTarget(HostRowsRunner(package, threads))
    return HostTarget.open(package, threads, uses_native)
