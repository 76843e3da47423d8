"""What TensorRT takes of our graphs, and what it refuses: its parser and its builder need no GPU, its engines do.

TensorRT for RTX 1.7 stands for all of its kind: the parser of TensorRT 10 is of the same family, in another version.
"""

from pathlib import Path
from typing import Any

import onnx
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime.execution.onnxruntime.device.buckets import padding_rows
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_tensorrt.engine import CAPACITY_NAME, shape_ranges
from tests.export.conftest import Exported
from tests.export.exported.simulated_devices import DEVICE_MODELS

trt: Any = pytest.importorskip(
    "tensorrt_rtx_bindings", reason="TensorRT's parser is not here: pip install 'reader-edge[trt-check]'"
)


NUM_ROWS = padding_rows(2048)
DEMO = Path(__file__).parents[3] / "models" / "demo" / "checkpoint"


TAKEN = [name for name in DEVICE_MODELS if name != "gemma2"]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("model_type", TAKEN)
def test_graphs_of_fixed_capacity_are_taken(
    model_type: str, precision: str, exported: Exported, tmp_path: Path
) -> None:
    package = exported(model_type, precision, "fast", is_checked=False)
    _, network, refusals = parse(package / GRAPH_NAME, tmp_path)
    assert refusals == []
    assert network.num_layers > 0


def test_the_graph_that_commits_is_taken_too(exported: Exported, tmp_path: Path) -> None:
    package = exported("llama", "fp16", "fast", is_checked=False)
    assert parse(package / COMMIT_NAME, tmp_path)[2] == []


@pytest.mark.parametrize(
    ("model_type", "num_rows", "words"),
    [("gemma2", NUM_ROWS, "softcap is not supported"), ("llama", None, "static sequence length")],
)
def test_what_is_refused_is_known(
    model_type: str, num_rows: int | None, words: str, exported: Exported, tmp_path: Path
) -> None:
    """Capped scores, and a capacity that is left open."""
    package = exported(model_type, "fp16", "fast", is_checked=False)
    refusals = parse(package / GRAPH_NAME, tmp_path, num_rows)[2]
    assert any(words in refusal for refusal in refusals), refusals


def test_sums_in_float64_become_float32_without_a_word(exported: Exported, tmp_path: Path) -> None:
    """So the provider refuses exact attention itself."""
    package = exported("llama", "fp16", "exact", is_checked=False)
    _, network, refusals = parse(package / GRAPH_NAME, tmp_path)
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    assert refusals == []
    assert any("Softmax" in layer.name and layer.get_output(0).dtype == trt.float32 for layer in layers)


def test_an_engine_of_the_demo_is_built_for_all_sizes_of_passes(tmp_path: Path) -> None:
    export_model(DEMO, tmp_path / "demo", ExportOptions("fp16", "fast", check="none"))
    builder, network, refusals = parse(tmp_path / "demo" / GRAPH_NAME, tmp_path)
    assert refusals == []
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for name, shapes in shape_ranges(ModelPackage.open(tmp_path / "demo").manifest, 2, NUM_ROWS).items():
        profile.set_shape(name, *shapes)
    assert config.add_optimization_profile(profile) == 0
    assert builder.build_serialized_network(network, config) is not None


class Log(trt.ILogger):  # type: ignore[misc] # a class only where the bindings are
    """Says nothing: refusals come back from the parser."""

    def log(self, severity: object, message: str) -> None:
        pass


LOG = Log()


def parse(graph: Path, folder: Path, num_rows: int | None = NUM_ROWS) -> tuple[Any, Any, list[str]]:
    """A builder, the network of a graph whose capacity is fixed unless it is None, and what the parser refused."""
    model = onnx.load(graph)
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == CAPACITY_NAME and num_rows is not None:
                size.dim_value = num_rows
    path = folder / f"fixed-{graph.name}"
    onnx.save(model, path)
    builder = trt.Builder(LOG)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, LOG)
    is_parsed = parser.parse_from_file(str(path))
    refusals = [parser.get_error(number).desc() for number in range(parser.num_errors)]
    assert is_parsed == (not refusals)
    return builder, network, refusals
