"""Graphs that load and are not what they say: each is one sentence."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from reader_edge.cli import main
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import FORM_PROPERTY, GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.reader_edge.package_copy import PackageCopy


def _lose_the_shape_of_logits(graph: onnx.GraphProto) -> None:
    output = next(output for output in graph.output if output.name == "logits")
    output.type.tensor_type.ClearField("shape")
    hidden = "logits_of_some_shape"
    for node in graph.node:
        node.output[:] = [hidden if name == "logits" else name for name in node.output]
        node.input[:] = [hidden if name == "logits" else name for name in node.input]
    graph.input.append(helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [None]))
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1]), "shape"))
    graph.node.append(helper.make_node("Reshape", [hidden, "shape"], ["logits"]))


def _fail_inside_a_pass(graph: onnx.GraphProto) -> None:
    """Token ids that no row of the embeddings has."""
    graph.initializer.append(numpy_helper.from_array(np.array(1 << 30), "far"))
    graph.node.insert(0, helper.make_node("Add", ["input_ids", "far"], ["far_ids"]))
    for node in graph.node[1:]:
        node.input[:] = ["far_ids" if name == "input_ids" else name for name in node.input]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_lose_the_shape_of_logits, "logits has shape []"), (_fail_inside_a_pass, "failed in a pass")],
)
def test_a_spoilt_graph_is_one_sentence(
    spoil: Callable[[onnx.GraphProto], None], words: str, demo_folder: Path, tmp_path: Path
) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    model = onnx.load(package.folder / GRAPH_NAME, load_external_data=False)
    spoil(model.graph)
    package.write_file(GRAPH_NAME, model.SerializeToString())
    result = CliRunner().invoke(main, ["run", str(package.folder), "-p", "# tar"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


@pytest.mark.parametrize("change", [{"num_heads": 8}, {"precision": "int4"}])
def test_a_graph_of_another_form_than_the_manifest_says_is_refused(
    change: dict[str, object], demo_folder: Path, tmp_path: Path
) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    form = ModelPackage.open(package.folder).manifest.form
    package.change_manifest(**change)
    spoilt = ModelPackage.open(package.folder)
    with pytest.raises(ProviderError, match=f"The graph is '{form}', the manifest says '{spoilt.manifest.form}'"):
        HostTarget.open(spoilt)


@pytest.mark.parametrize(("key", "value"), [(FORM_PROPERTY, "mark"), ("other", "mark"), ("mark", "")])
def test_metadata_that_are_no_utf8_are_refused(key: str, value: str, demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    model = onnx.load(package.folder / GRAPH_NAME, load_external_data=False)
    del model.metadata_props[:]
    model.metadata_props.add(key=key, value=value)
    data = model.metadata_props[0].SerializeToString()
    whole = model.SerializeToString()
    assert whole.count(data) == 1
    package.write_file(GRAPH_NAME, whole.replace(data, data.replace(b"mark", b"\xff\xfe\x80\xff")))
    with pytest.raises(ProviderError, match=r"^The graph's names or metadata are not UTF-8 \('utf-8' codec"):
        HostTarget.open(ModelPackage.open(package.folder))


def test_a_name_of_a_graph_is_shown_short_and_escaped(demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    model = onnx.load(package.folder / GRAPH_NAME, load_external_data=False)
    name = "\x1b[2J\n" + "x" * 10_000
    model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]))
    package.write_file(GRAPH_NAME, model.SerializeToString())
    with pytest.raises(ProviderError, match=r"inputs differ from the manifest \('\\x1b\[2J\\nx{50,80}\): export"):
        HostTarget.open(ModelPackage.open(package.folder))


def test_an_operator_that_is_no_utf8_is_refused_in_silence(
    demo_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    model = onnx.load(package.folder / GRAPH_NAME, load_external_data=False)
    model.graph.node[0].op_type = "MarkedOperator"
    package.write_file(GRAPH_NAME, model.SerializeToString().replace(b"MarkedOperator", b"\xff\xfe" * 7))
    with pytest.raises(ProviderError, match=r"cannot load .*'utf-8' codec"):
        HostTarget.open(ModelPackage.open(package.folder))
    assert capfd.readouterr() == ("", "")


def test_a_fault_inside_a_pass_is_one_sentence_and_the_next_pass_is_right(
    demo_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = HostTarget.open(ModelPackage.open(demo_folder))
    cache = target.new_cache(1, 8)
    good = Pass(0, [DraftTree.root(5)], [[0]], wants_logits=True)
    before = target.forward(cache, good).wanted_logits.tobytes()
    with pytest.raises(ProviderError, match=r"^ONNX Runtime failed in a pass \(.*indices element out of data bounds"):
        target.forward(cache, Pass(0, [DraftTree.root(target.manifest.vocab_size)], [[0]]))
    assert capfd.readouterr().err == ""  # what ONNX Runtime logs is shown as the graph spells it
    assert target.forward(cache, good).wanted_logits.tobytes() == before
