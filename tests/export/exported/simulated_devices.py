"""GPUs simulated on the CPU: operators and models of their packages, TensorRT engines of fixed capacity."""

import json
from pathlib import Path

import onnx
import onnxruntime as ort

from reader_edge_export.sources.architectures import check_options
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.device.device_cache import CommitGraph
from reader_edge_runtime.execution.onnxruntime.session import CPU, load_session, session_options
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_tensorrt.engine import CAPACITY_NAME
from reader_edge_tensorrt.tensorrt_target import EngineShelf, TensorRtTarget
from tests.tiny_models import TINY_MODELS, tiny_config

TABLE = Path(__file__).parents[2] / "data" / "cuda_operators.json"

DEVICE_FORMS = (("fp32", "fast"), ("fp16", "exact"), ("bf16", "exact"), ("fp16", "fast"), ("bf16", "fast"))


def is_for_devices(name: str) -> bool:
    """Whether a model of TINY_MODELS has packages of these forms."""
    try:
        check_options(tiny_config(name), "fp16", "fast")
    except ConfigError:
        return False
    return True


DEVICE_MODELS = [name for name in TINY_MODELS if is_for_devices(name)]


def operators_of(graph: Path) -> set[str]:
    """The operators of a graph file, each with the types of its inputs: "Add float16 float16"."""
    model = onnx.shape_inference.infer_shapes(onnx.load(graph, load_external_data=False))
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    names = {name: onnx.TensorProto.DataType.Name(number).lower() for name, number in types.items()}
    names[""] = "none"  # an input that is left out
    return {" ".join([node.op_type, *(names[each] for each in node.input)]) for node in model.graph.node}


def cuda_operators() -> set[str]:
    """Those that scripts/check_cuda_kernels saw on CUDA."""
    table: list[str] = json.loads(TABLE.read_text(encoding="utf-8"))["operators"]
    return set(table)


class SimulatedEngines:
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
