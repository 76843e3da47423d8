"""Engines of TensorRT, played by sessions on the CPU whose capacity is as fixed as theirs."""

import onnxruntime as ort

from reader_edge_runtime.execution.onnxruntime.device.device_cache import CommitGraph
from reader_edge_runtime.execution.onnxruntime.session import CPU, load_session, session_options
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_tensorrt.engine import CAPACITY_NAME
from reader_edge_tensorrt.tensorrt_target import EngineShelf, TensorRtTarget


class PlayedEngines:
    """Of one package. opened: slots and rows of each engine so far."""

    def __init__(self, package: ModelPackage) -> None:
        self.opened: list[tuple[int, int]] = []
        self._package = package

    def target(self) -> TensorRtTarget:
        manifest = self._package.manifest
        shelf = EngineShelf(manifest, "played", self._open)
        return TensorRtTarget(shelf, manifest, "cpu", CommitGraph(self._package.path(COMMIT_NAME), "cpu", CPU))

    def _open(self, num_slots: int, num_rows: int) -> ort.InferenceSession:
        self.opened.append((num_slots, num_rows))
        options = session_options(1)
        options.add_free_dimension_override_by_name(CAPACITY_NAME, num_rows)
        return load_session(self._package.path(GRAPH_NAME), options, CPU)
