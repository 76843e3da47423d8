"""Packages whose new KV rows are results, on ONNX Runtime's CPU provider: what other engines are compared with."""

from collections.abc import Mapping

from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.execution.rows.rows_runner import RowsResult
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage

_Bound = Mapping[str, ort.OrtValue]


class HostRowsRunner:
    """A `RowsRunner`; trees are as wide as they are."""

    pass_sizes: tuple[int, ...] = ()

    def __init__(self, package: ModelPackage, threads: int = 0, is_aside: bool = False) -> None:
        """Raises ProviderError."""
        self.manifest = package.manifest
        self._session = open_session(package.path(GRAPH_NAME), threads, is_aside=is_aside)
        check_contract(self._session, self.manifest)
        self.provider = str(self._session.get_providers()[0])
        self.pass_facts: tuple[str, ...] = (INSTALLED_WHEEL,)
        self._outputs = [node.name for node in self._session.get_outputs()]

    def width_for(self, num_nodes: int) -> int:
        return num_nodes

    def bound(self, past: Mapping[str, KvArray]) -> _Bound:
        return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in past.items()}

    def run(self, inputs: Inputs, bound: _Bound) -> RowsResult:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name, value in bound.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self._session, binding)
        made = {name: value.numpy()[0] for name, value in zip(self._outputs, binding.get_outputs(), strict=True)}
        names = zip(self.manifest.past_names(), self.manifest.present_names(), strict=True)
        return RowsResult(made["logits"], made.get("hidden_states"), {past: made[new] for past, new in names})
