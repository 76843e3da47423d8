"""Graphs that load and are not what they say, speculators' too: each is one sentence."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from reader_edge.cli import main
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_speculator
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME, LOWERING_PROPERTY
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import LentPart, SpeculatorPart
from reader_edge_runtime.target import Pass
from tests.fake_target import make_manifest
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
    ("spoil", "words"), [(_lose_the_shape_of_logits, "logits has shape []"), (_fail_inside_a_pass, "failed in a pass")]
)
def test_spoilt_graphs_fail(
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
def test_a_graph_of_another_manifest_is_refused(change: dict[str, object], demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    form = ModelPackage.open(package.folder).manifest.lowering_id
    package.change_manifest(**change)
    spoilt = ModelPackage.open(package.folder)
    with pytest.raises(
        ProviderError, match=f"The graph is '{form}', the manifest says '{spoilt.manifest.lowering_id}'"
    ):
        HostTarget.open(spoilt)


@pytest.mark.parametrize(("key", "value"), [(LOWERING_PROPERTY, "mark"), ("other", "mark"), ("mark", "")])
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


def test_an_operator_of_no_text_is_refused(
    demo_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    model = onnx.load(package.folder / GRAPH_NAME, load_external_data=False)
    model.graph.node[0].op_type = "MarkedOperator"
    package.write_file(GRAPH_NAME, model.SerializeToString().replace(b"MarkedOperator", b"\xff\xfe" * 7))
    with pytest.raises(ProviderError, match=r"cannot load .*'utf-8' codec"):
        HostTarget.open(ModelPackage.open(package.folder))
    assert capfd.readouterr() == ("", "")


def test_after_a_fault_in_a_pass_the_next_one_is_right(demo_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = HostTarget.open(ModelPackage.open(demo_folder))
    cache = target.new_cache(1, 8)
    good = Pass(0, [DraftTree.root(5)], [[0]], wants_logits=True)
    before = target.forward(cache, good).wanted_logits.tobytes()
    with pytest.raises(ProviderError, match=r"^ONNX Runtime failed in a pass \(.*indices element out of data bounds"):
        target.forward(cache, Pass(0, [DraftTree.root(target.manifest.vocab_size)], [[0]]))
    assert capfd.readouterr().err == ""  # what ONNX Runtime logs is shown as the graph spells it
    assert target.forward(cache, good).wanted_logits.tobytes() == before


MANIFEST = replace(
    make_manifest(),
    hidden_size=48,
    state_ids=(0, 1),
    speculator=SpeculatorPart("eagle3", 1, 4, 2, 16, 32, 32, 8, (0, 1)),
)
Tensors = dict[str, tuple[str, list[Any] | None]]


IDS, NUMBERS = "tensor(int64)", "tensor(float)"
INPUTS: Tensors = {
    "input_ids": (IDS, ["B", "N"]),
    "position_ids": (IDS, ["B", "N"]),
    "tree_mask": (NUMBERS, ["B", 1, "N", "S"]),
    "write_pos": (IDS, ["B"]),
    "logit_rows": (IDS, ["B", "R"]),
    "target_states": (NUMBERS, ["B", "N1", 96]),
    "own_states": (NUMBERS, ["B", "N2", 32]),
    "past_key.0": (NUMBERS, ["B", 2, "S", 16]),
    "past_value.0": (NUMBERS, ["B", 2, "S", 16]),
}
OUTPUTS: Tensors = {
    "top_ids": (IDS, ["B", "R", 8]),
    "top_logits": (NUMBERS, ["B", "R", 8]),
    "log_sum_exp": (NUMBERS, ["B", "R"]),
    "next_states": (NUMBERS, ["B", "N", 32]),
    "present_key.0": (NUMBERS, ["B", 2, "N", 16]),
    "present_value.0": (NUMBERS, ["B", 2, "N", 16]),
}


def session(inputs: Tensors, outputs: Tensors) -> Any:
    def listed(tensors: Tensors) -> Callable[[], list[SimpleNamespace]]:
        return lambda: [SimpleNamespace(name=name, type=kind, shape=shape) for name, (kind, shape) in tensors.items()]

    return SimpleNamespace(get_inputs=listed(inputs), get_outputs=listed(outputs))


def test_a_graph_that_keeps_its_contract_passes() -> None:
    check_speculator(session(INPUTS, OUTPUTS), MANIFEST)


LENT_MANIFEST = replace(
    make_manifest(),
    hidden_size=48,
    kv_dtype="int8",
    state_ids=(0, 1),
    speculator=SpeculatorPart("assistant", 0, 4, 2, 16, 32, 32, 8, (0, 1), lent=LentPart((0,), 5)),
)
LENT_INPUTS: Tensors = {
    **{name: each for name, each in INPUTS.items() if not name.startswith("past_")},
    "tree_mask_sliding": INPUTS["tree_mask"],
    **{f"past_{kind}.0": ("tensor(int8)", ["B", 1, "S", 4]) for kind in ("key", "value")},
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, ""),
        ({"past_key.1": INPUTS["past_key.0"]}, "inputs differ from the manifest ('past_key.1')"),
        ({"past_key.0": (NUMBERS, ["B", 1, "S", 4])}, "past_key.0 is a tensor(float)"),
        ({"past_value.0": ("tensor(int8)", ["B", 1, "S", 2])}, "the manifest says tensor(int8) with [1, 4]"),
        ({"tree_mask_sliding": (IDS, ["B", 1, "N", "S"])}, "tree_mask_sliding is a tensor(int64)"),
    ],
)
def test_a_graph_reads_what_its_target_lends(change: Tensors, sentence: str) -> None:
    outputs = {name: each for name, each in OUTPUTS.items() if not name.startswith("present_")}
    with pytest.raises(ProviderError) if sentence else nullcontext() as refused:
        check_speculator(session(LENT_INPUTS | change, outputs), LENT_MANIFEST)
    assert sentence in str(refused and refused.value)


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ({"past_key.1": (NUMBERS, [])}, {}, "The speculator's inputs differ from the manifest ('past_key.1'):"),
        ({}, {"\x1b[2J": (NUMBERS, [])}, "The speculator's outputs differ from the manifest ('\\x1b[2J'):"),
        ({"target_states": (NUMBERS, ["B", "N1", 48])}, {}, "target_states is a tensor(float) of ['B', 'N1', 48]"),
        ({"own_states": ("tensor(float16)", ["B", "N2", 32])}, {}, "own_states is a tensor(float16) of"),
        ({"past_key.0": (NUMBERS, ["B", 4, "S", 16])}, {}, "the manifest says tensor(float) with [2, 16]"),
        ({}, {"top_ids": (IDS, ["B", "R", 7])}, "the manifest says tensor(int64) with [8]: export the model again."),
        ({}, {"next_states": (NUMBERS, None)}, "next_states is a tensor(float) of []"),
    ],
)
def test_a_graph_that_breaks_it_is_refused(inputs: Tensors, outputs: Tensors, sentence: str) -> None:
    with pytest.raises(ProviderError) as refused:
        check_speculator(session(INPUTS | inputs, OUTPUTS | outputs), MANIFEST)
    assert sentence in str(refused.value)
    assert str(refused.value).isprintable()


def test_names_that_are_no_text_are_refused() -> None:
    def get_inputs() -> None:
        b"\xff".decode()

    with pytest.raises(ProviderError, match=r"The speculator's names are not UTF-8 .*: export the model again\."):
        check_speculator(SimpleNamespace(get_inputs=get_inputs), MANIFEST)
