"""What sees images computes what transformers' whole model computes: features, and the logits of texts with images."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.images.image_export import ImageExport
from reader_edge_export.images.tower_graph import FEATURES
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.options import ExportOptions
from reader_edge_export.package_graph import write_graph
from reader_edge_export.progress import Progress
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.image_part import find_images
from reader_edge_export.trace.tree_config import sliding_window_of, trace_model
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.package_parts import VISION_GRAPH_NAME
from tests.export.graph_runner import LENGTHS, NUM_NODES, Feed, GraphRunner, ancestors, as_mask
from tests.export.images.mmproj_files import IN_TWO_FILES, build_files
from tests.export.images.seeing_models import IMAGE_ID, KINDS, Reference, build_seeing_model, fed, positions_of
from tests.tiny_models import MAX_CONTEXT

LIMIT = 1e-5
IN_FILES = " in two files"  # of GGUF, in place of a folder
MODELS = [*KINDS, *(pytest.param(name + IN_FILES, marks=pytest.mark.long) for name in IN_TWO_FILES)]
WORDS = np.random.default_rng(2).integers(3, 280, 64).tolist()


@dataclass(frozen=True, slots=True)
class Seeing:
    """A whole model's reference, the folder of its graphs, and the window of its layers."""

    reference: Reference
    folder: Path
    window: int | None

    def features(self, number: int) -> Float32Array:
        session = ort.InferenceSession(self.folder / VISION_GRAPH_NAME, providers=["CPUExecutionProvider"])
        (features,) = session.run(None, self.reference.inputs[number])
        return np.asarray(features, np.float32)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seeing]:
    """A name of MODELS -> what was exported of it, once each."""
    done: dict[str, Seeing] = {}

    def export(name: str) -> Seeing:
        if name not in done:
            folder, own = tmp_path_factory.mktemp("seeing"), name.removesuffix(IN_FILES)
            if own == name:
                whole = found = build_seeing_model(own, folder)
            else:
                whole, found = build_files(own, folder)
            source = find_source(found, None)
            part, model = find_images(source), source.open_model()
            assert part is not None
            images, out = ImageExport.of(part, model), folder / "out"
            out.mkdir()
            with quiet_libraries():
                layers = trace_model(model, MAX_CONTEXT, folder / "traced.onnx", images=images.rows)
                write_graph(folder / "traced.onnx", out, ExportOptions("fp32"), Calibration(), model)
                images.write(out, folder, "fp32", Progress())
            done[name] = Seeing(Reference(own, whole), out, sliding_window_of(layers))
        return done[name]

    return export


@pytest.mark.parametrize("name", MODELS)
def test_features_are_those_of_transformers(name: str, seeing: Callable[[str], Seeing]) -> None:
    model = seeing(name)
    expected = model.reference.features()
    for number, features in enumerate(expected):
        assert np.abs(model.features(number) - features).max() < LIMIT * max(1, np.abs(features).max())
        assert np.abs(features).max() > 0.5  # else the limit says nothing
    graph = GraphFile.read(model.folder / VISION_GRAPH_NAME)
    assert ("com.microsoft", "MultiHeadAttention") in graph.operators
    assert "Softmax" not in {name for _, name in graph.operators}
    assert not graph.has_unbounded_work()


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_rounded_features_are_near_those_of_transformers(name: str, tmp_path: Path) -> None:
    source = find_source(build_seeing_model(name, tmp_path), None)
    part, out = find_images(source), tmp_path / "out"
    assert part is not None
    out.mkdir()
    with quiet_libraries():
        ImageExport.of(part, source.open_model()).write(out, tmp_path, "int8", Progress())
    nodes = onnx.load(out / VISION_GRAPH_NAME, load_external_data=False).graph.node
    assert "SpreadRowLinear" in {node.op_type.removesuffix("Bias") for node in nodes}
    read = {FEATURES, *(name for node in nodes for name in node.input)}
    assert [node for node in nodes if not read & {*node.output}] == []  # whose fp32 weights would come along
    seeing = Seeing(Reference(name, tmp_path), out, None)
    for number, features in enumerate(seeing.reference.features()):
        error = np.linalg.norm(seeing.features(number) - features) / np.linalg.norm(features)
        assert 1e-4 < error < 0.1


@pytest.mark.parametrize("name", KINDS)
def test_texts_have_the_bits_of_a_graph_of_texts(name: str, seeing: Callable[[str], Seeing], tmp_path: Path) -> None:
    model = seeing(name)
    source = find_source(model.folder.parent, None).open_model()
    with quiet_libraries():
        trace_model(source, MAX_CONTEXT, tmp_path / "traced.onnx")
        write_graph(tmp_path / "traced.onnx", tmp_path, ExportOptions("fp32"), Calibration(), source)
    num_deepstack = model.reference.eyes.num_deepstack
    rows = np.zeros((1, 64 * (1 + num_deepstack)), np.float32)

    def see(depths: npt.NDArray[np.int64], slots: slice) -> Feed:
        feed: Feed = {"image_index": np.full_like(depths, -1), **fed(rows, num_deepstack)}
        has_axes = model.reference.eyes.num_axes == 3
        return feed | ({"position_ids": np.broadcast_to(depths, (3, *depths.shape))} if has_axes else {})

    given = np.array([WORDS[:20], WORDS[20:40]]), np.array([WORDS[40:47], WORDS[47:54]])
    plain = GraphRunner(tmp_path / GRAPH_NAME, model.window).tree_logits(*given)
    assert np.array_equal(GraphRunner(model.folder / GRAPH_NAME, model.window, see=see).tree_logits(*given), plain)


@pytest.mark.parametrize("name", MODELS)
def test_a_tree_behind_two_images_is_each_path_alone(name: str, seeing: Callable[[str], Seeing]) -> None:
    """A ragged batch: a prompt with two images, and one without."""
    model = seeing(name)
    reference, num_axes = model.reference, model.reference.eyes.num_axes
    features = [model.features(number) for number in range(2)]
    pads = [[IMAGE_ID] * len(each) for each in features]
    first = [*WORDS[:3], *pads[0], *WORDS[3:5], *pads[1]]
    prompts = [first + WORDS[5 : 5 + LENGTHS[0] - len(first)], WORDS[30 : 30 + LENGTHS[1]]]
    assert prompts[0][-1] != IMAGE_ID
    tree = np.array([WORDS[40 : 40 + NUM_NODES], WORDS[50 : 50 + NUM_NODES]])
    tables = [positions_of(prompt, num_axes) for prompt in prompts]
    places = [np.array(prompt) == IMAGE_ID for prompt in prompts]
    indices = [np.where(place, np.cumsum(place) - 1, -1) for place in places]

    def see(depths: npt.NDArray[np.int64], slots: slice) -> Feed:
        """The inputs of images at nodes of these depths (B, N)."""
        index = np.full_like(depths, -1)
        positions = np.empty((3, *depths.shape), np.int64)
        for b, (own, (table, shift), numbers) in enumerate(zip(depths, tables[slots], indices[slots], strict=True)):
            is_prompt = own < table.shape[1]
            place = np.where(is_prompt, own, 0)
            positions[:, b] = np.where(is_prompt, table[:, place], own + shift)
            index[b] = np.where(is_prompt, numbers[place], -1)
        feed: Feed = {"image_index": index, **fed(np.concatenate(features), reference.eyes.num_deepstack)}
        feed |= {"position_ids": positions} if num_axes == 3 else {}
        whole = reference.eyes.sees_whole_image
        if whole != "none" and len(depths) == 1:  # a prompt
            image = np.where(index[0] >= len(features[0]), 1, np.minimum(index[0], 0))
            is_seen = np.tri(len(image), dtype=bool) | ((image[:, None] == image) & (image >= 0))
            is_near = np.subtract.outer(depths[0], depths[0]) < (model.window or MAX_CONTEXT)
            feed |= {"tree_mask": as_mask(is_seen[None])} if whole == "all" else {}
            feed["tree_mask_sliding"] = as_mask((is_seen & is_near)[None])
        return feed

    runner = GraphRunner(model.folder / GRAPH_NAME, model.window, see=see)
    padded = np.array([np.resize(prompt, LENGTHS[0]) for prompt in prompts])
    logits = runner.tree_logits(padded, tree)
    for b, prompt in enumerate(prompts):
        for node in range(NUM_NODES):
            path = tree[b][ancestors()[node]].tolist()
            expected = reference.logits(prompt + path)[-1]
            assert np.abs(logits[b, node] - expected).max() < LIMIT * max(1, np.abs(expected).max())
