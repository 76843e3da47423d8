"""Packages whose layers keep rows of several sizes, or none of their own, with a large table of inputs of layers."""

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.package.package_size import PackageSize
from reader_edge_export.sources.folder.folder_weights import FolderWeights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.source_models import open_source
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

TABLE = "model.embed_tokens_per_layer.weight"


def test_a_manifest_tells_of_each_layer_what_it_keeps(exported: Callable[..., Path]) -> None:
    manifest = ModelPackage.open(exported("gemma4_text", "int8", "exact")).manifest
    windowed, whole = (2, 16), (1, 32)
    own = [Layer.attention(*sizes) for sizes in (windowed, whole, whole)]
    assert manifest.layers == (*own, Layer.attention(*windowed, shares=0), Layer.attention(*whole, shares=2))
    assert manifest.past_names() == [f"past_{kind}.{layer}" for layer in range(3) for kind in ("key", "value")]
    assert manifest.kv_row_bytes == 2 * (2 * 18 + 34 + 34)  # in int8, with two bytes of magnitude a row
    assert manifest.checks["tree_rows_equal"] == 1


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_table_of_layers_inputs_is_read_a_few_rows_at_a_time(
    precision: str, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, some = FolderWeights.read, FolderWeights.read_rows
    most = 7

    def read(weights: FolderWeights, name: str) -> Float32Array:
        assert name != TABLE
        return whole(weights, name)

    def read_rows(weights: FolderWeights, name: str, start: int, stop: int) -> Float32Array:
        assert name != TABLE or stop - start <= most
        return some(weights, name, start, stop)

    monkeypatch.setattr(FolderWeights, "read", read)
    monkeypatch.setattr(FolderWeights, "read_rows", read_rows)
    monkeypatch.setattr("reader_edge_export.sources.weights._PART_NUMBERS", most * 80)
    export_model(tiny_model("gemma4_text"), tmp_path / "out", ExportOptions(precision, check="none"))
    initializers = ir.load(tmp_path / "out" / GRAPH_NAME).graph.initializers.values()
    (table,) = (value for value in initializers if value.shape == (VOCAB_SIZE, 80))
    assert table.dtype == (ir.DataType.FLOAT if precision == "fp32" else ir.DataType.INT8)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_sizes_are_foretold_with_the_table(precision: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "hidden_size_per_layer_input": 64}
    source = build_tiny_model("gemma4_text", tmp_path / "source", **sizes)
    options = ExportOptions(precision, check="none")
    told = PackageSize.of(open_source(source), options)
    export_model(source, tmp_path / "out", options)
    taken = (tmp_path / "out" / WEIGHTS_NAME).stat().st_size
    padding = 4096 * len(list(open_source(source).skeleton.parameters()))
    assert told.is_least or taken <= told.weights
    assert told.weights - padding <= taken


@pytest.mark.parametrize("options", [ExportOptions("fp16", "fast"), ExportOptions("fp32", "portable")])
def test_what_is_for_devices_is_refused(
    options: ExportOptions, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="heads of several sizes, which are exported for CPUs alone: use attention"):
        export_model(tiny_model("gemma4_text"), tmp_path / "out", options)
