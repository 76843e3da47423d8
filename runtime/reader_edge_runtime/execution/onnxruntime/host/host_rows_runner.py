"""Packages whose new KV rows are results, on ONNX Runtime's CPU provider: what other engines are compared with."""

from collections.abc import Mapping

from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.onnxruntime.rows_session import RowsSession
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.execution.rows.rows_runner import RowsResult
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage

_Bound = Mapping[str, ort.OrtValue]


class HostRowsRunner:
    """A `RowsRunner`; trees are as wide as they are."""

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
