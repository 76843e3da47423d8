"""An ONNX file says what it refers to, wherever that stands, and its versions; a hostile one does no harm."""

from pathlib import Path

import pytest

from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.onnx_versions import onnx_versions
from tests.runtime.package.onnx_bytes import external_tensor, function, message, model, node, varint

TENSOR = external_tensor("weights")


def read(folder: Path, content: bytes) -> GraphFile:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return GraphFile.read(path)


@pytest.mark.parametrize(
    "content",
    [
        model(tensors=[TENSOR]),
        model(node("Constant", attribute=message(5, TENSOR))),
        model(node("Constant", attribute=message(10, TENSOR))),
        model(node("Constant", attribute=message(22, message(1, TENSOR)))),
        model(node("Constant", attribute=message(23, message(2, TENSOR)))),
        message(7, message(15, message(1, TENSOR))),
        model(functions=[function("F", node("Constant", attribute=message(5, TENSOR)))]),
        model() + message(25, message(11, message(5, TENSOR))),
        model() + message(7, message(5, TENSOR)),  # a second graph field is merged into the first
        model(tensors=[message(9, b"x" * 100_000), TENSOR]),
        varint(1 << 3)
        + varint(11)
        + varint(99 << 3 | 1)
        + bytes(8)
        + varint(98 << 3 | 5)
        + bytes(4)
        + model(tensors=[TENSOR]),
    ],
)
def test_external_data_is_found_wherever_it_stands(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content).external_files == {"weights"}


def test_operators_of_graph_and_functions_are_listed(tmp_path: Path) -> None:
    content = model(node("Add"), node("F", "own"), functions=[function("F", node("Mul", "ai.onnx"), node("Neg"))])
    graph = read(tmp_path, content)
    assert graph.nodes == [("", "Add"), ("own", "F")]
    assert graph.functions == {("own", "F"): [("", "Mul"), ("", "Neg")]}
    assert graph.operators == {("", "Add"), ("own", "F"), ("", "Mul"), ("", "Neg")}
    assert graph.num_unfolded_nodes() == 4
    assert not graph.has_unbounded_work()


SIZE = node("Size", outputs=["count"])


def loop(*nodes: bytes, trips: str = "count", op_type: str = "Loop", field: int = 6) -> bytes:
    """A node with a body of these nodes."""
    body = b"".join(message(1, each) for each in nodes)
    return node(op_type, attribute=message(field, body), inputs=[trips, "go"])


def test_a_loop_that_runs_as_often_as_a_size_says_is_bounded(tmp_path: Path) -> None:
    inner = loop(node("Neg"), node("Constant", attribute=message(5, TENSOR)))
    called = function("F", SIZE, loop(SIZE, inner, node("G", "own")))
    graph = read(tmp_path, model(node("F", "own"), functions=[called, function("G", node("Abs"))]))
    assert not graph.has_unbounded_work()
    assert graph.operators == {
        *((("own", name)) for name in "FG"),
        *(("", name) for name in ("Abs", "Size", "Loop", "Neg", "Constant")),
    }
    assert graph.external_files == {"weights"}


@pytest.mark.parametrize(
    "content",
    [
        model(loop()),
        model(loop(trips="")),
        model(node("Size", outputs=["other"]), loop()),
        model(node("Size", "own", outputs=["count"]), loop()),
        model(SIZE, loop(loop())),  # the size is not beside it
        model(SIZE, loop(SIZE, loop(SIZE, loop()))),
        model(SIZE, loop(op_type="Scan")),
        model(SIZE, loop(op_type="If")),
        model(SIZE, loop(field=11)),
        model(SIZE, loop(field=6) + message(5, message(6, b""))),
        model(SIZE, node("Loop", "own", message(6, b""), ["count"])),
        model(SIZE, loop(node("F", "own")), functions=[function("F", SIZE, loop())]),
        model(SIZE, loop(node("F", "own")), functions=[function("F", node("G", "own")), function("G", SIZE, loop())]),
        model(functions=[function("F", SIZE, loop()) + message(11, message(6, b""))]),  # what an attribute stands for
        model(SIZE, node("F", "own", message(6, b"")), functions=[function("F")]),
        model() + message(20, b""),  # training information
    ],
)
def test_any_other_subgraph_may_run_without_end(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content).has_unbounded_work()


def test_texts_are_read_as_protobuf_reads_them_and_can_be_shown(tmp_path: Path) -> None:
    entry = message(1, "offset") + message(1, "location") + message(2, "harmless") + message(2, "evil")
    assert read(tmp_path, model(tensors=[message(13, entry)])).external_files == {"evil"}
    entry = message(1, "location") + message(2, b"\xff\xfe")
    assert read(tmp_path, model(tensors=[message(13, entry)])).external_files == {r"\xff\xfe"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        message(1, "no graph"),
        model(tensors=[TENSOR])[:-1],
        message(7, message(5, TENSOR)[:-1]),
        message(7, message(5, TENSOR) + varint(1 << 3)),
        message(7, varint(5 << 3 | 2) + varint(1 << 62)),
        message(7, varint(5 << 3 | 2) + b"\xff" * 11),
        message(7, varint(1 << 3 | 5) + b"abc"),
        message(7, varint(5 << 3 | 3)),
        message(7, varint(5 << 3 | 2 | 1 << 32) + varint(len(TENSOR)) + TENSOR),  # read as field 5 by some
    ],
)
def test_file_that_is_no_whole_model_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(PackageError, match="is not an ONNX model"):
        read(tmp_path, content)


def test_too_many_fields_are_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_runtime.package.graph_file._MAX_FIELDS", 1000)
    with pytest.raises(PackageError, match="is not an ONNX model"):
        read(tmp_path, message(7, varint(1 << 3) * 1001 + bytes(1001)))


def test_the_demo_s_versions_are_read(demo_folder: Path) -> None:
    assert onnx_versions(demo_folder / "model.onnx") == (11, 24)


@pytest.mark.parametrize(
    ("content", "versions"),
    [
        (b"\x08\x0a", (10, 0)),
        (b"\x08\x0a\x42\x02\x10\x18", (10, 24)),
        (b"\x08\x0a\x42\x0b\x0a\x07ai.onnx\x10\x17\x42\x05\x0a\x01x\x10\x63", (10, 23)),
        (b"\x08\x0a\x0d1234\x09" + bytes(8), (10, 0)),
    ],
)
def test_ours_are_those_of_onnx_s_own_operators(content: bytes, versions: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    assert onnx_versions(tmp_path / "g.onnx") == versions


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\x42\x02\x10\x18", b"\x08\x0a\x42\x7f", b"\x0b", b"\x08" + b"\xff" * 11]
)
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(PackageError, match="is not an ONNX model"):
        onnx_versions(tmp_path / "g.onnx")
