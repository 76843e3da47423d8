"""A session on a graph whose new rows of the KV cache are results, and its passes."""

from collections.abc import Mapping

from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.session import run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.execution.rows.rows_runner import RowsResult
from reader_edge_runtime.package.manifest import Manifest


class RowsSession:
    """Results of a pass come to the host's memory, wherever the session runs."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        """Raises ProviderError where the graph is not what the manifest says."""
        check_contract(session, manifest)
        self.provider = str(session.get_providers()[0])
        self._session = session
        self._outputs = [node.name for node in session.get_outputs()]
        self._new_rows = dict(zip(manifest.past_names(), manifest.present_names(), strict=True))

    def run(self, inputs: Inputs, past: Mapping[str, ort.OrtValue]) -> RowsResult:
        """past: float32 (1, H, S, D) of each tensor, S at least what masks cover. Raises ProviderError."""
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name, rows in past.items():
            binding.bind_ortvalue_input(name, rows)
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self._session, binding)
        made = {name: value.numpy()[0] for name, value in zip(self._outputs, binding.get_outputs(), strict=True)}
        new_rows = {name: made[new] for name, new in self._new_rows.items()}
        return RowsResult(made["logits"], made.get("hidden_states"), new_rows)
