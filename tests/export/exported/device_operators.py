"""Which operators of which types packages for devices are made of, and which of them ONNX Runtime runs on CUDA."""

import json
from pathlib import Path

import onnx

from reader_edge_export.sources.architectures import check_form
from reader_edge_runtime.errors import ConfigError
from tests.tiny_models import TINY_MODELS, tiny_config

TABLE = Path(__file__).parents[2] / "data" / "cuda_operators.json"

DEVICE_FORMS = (("fp32", "fast"), ("fp16", "exact"), ("bf16", "exact"), ("fp16", "fast"), ("bf16", "fast"))


def is_for_devices(name: str) -> bool:
    """Whether a model of TINY_MODELS has packages of these forms."""
    try:
        check_form(tiny_config(name), "fp16", "fast")
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
