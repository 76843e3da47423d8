"""What sees images in a file beside that of a text model: found by its name, held against it, read in any type."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.models.exported import ModelSource, package_of
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.images.image_export import ImageExport
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.image_part import find_images
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import VISION_GRAPH_NAME
from tests.export.images.mmproj_files import IN_TWO_FILES, build_files, write_mmproj
from tests.export.images.seeing_models import IMAGE_ID, Reference
from tests.gguf_files import F32, small_vocabulary, write_gguf, write_small

KINDS = gguf.GGMLQuantizationType
TYPED = ["qwen3_5", *(pytest.param(name, marks=pytest.mark.long) for name in IN_TWO_FILES if name != "qwen3_5")]
Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Files]:
    """The folder of a tiny model that sees, and the file of its text model, by a name of EYES. Not to be changed."""
    made: dict[str, Files] = {}

    def build(name: str) -> Files:
        if name not in made:
            made[name] = build_files(name, tmp_path_factory.mktemp(name))
        return made[name]

    return build


@pytest.fixture
def model(files: Callable[[str], Files], tmp_path: Path) -> Path:
    """A copy of Qwen's file in a folder of its own, with its mmproj file beside it."""
    return Path(shutil.copytree(files("qwen3_5")[1].parent, tmp_path / "files")) / "model.gguf"


def spoilt(model: Path, values: dict[str, Any], tensors: dict[str, Array | None]) -> None:
    """Write the mmproj file beside a model once more. tensors: added or in place; None leaves one out."""
    path = model.with_name("mmproj.gguf")
    read = gguf.GGUFReader(path)
    kept = {each.name: np.array(each.data).reshape(each.shape[::-1]) for each in read.tensors} | tensors
    own = {key: field.contents() for key, field in read.fields.items() if not key.startswith(("GGUF.", "general.arch"))}
    write_gguf(path, "clip", own | values, {name: value for name, value in kept.items() if value is not None})


def opened(file: Path, mmproj: Path | None = None) -> SourceModel:
    """The tower for a file's model."""
    source = find_source(file, None)
    part = find_images(source, mmproj=mmproj)
    assert part is not None
    return ImageExport.of(part, source.open_model()).tower


def test_a_package_of_two_files_sees_what_the_folder_s_model_sees(
    files: Callable[[str], Files], tmp_path: Path
) -> None:
    whole, file = files("mistral3")
    export_model(file, tmp_path / "out", ExportOptions("fp32", check="none"))
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.images is not None
    assert (manifest.images.token_id, manifest.images.rules.longest_edge) == (IMAGE_ID, 56)
    reference = Reference("mistral3", whole)
    session = ort.InferenceSession(tmp_path / "out" / VISION_GRAPH_NAME, providers=["CPUExecutionProvider"])
    for inputs, expected in zip(reference.inputs, reference.features(), strict=True):
        (features,) = session.run(None, inputs)
        assert np.abs(features - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kind", [KINDS.F16, KINDS.BF16, KINDS.Q8_0])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) for name in IN_TWO_FILES[1:]] + ["qwen3_5"]
)
def test_matrices_of_other_types_have_the_file_s_values(
    name: str, kind: gguf.GGMLQuantizationType, files: Callable[[str], Files], tmp_path: Path
) -> None:
    whole, file = files(name)
    plain, rounded = (opened(file, write_mmproj(whole, tmp_path / f"{each.name}.gguf", each)) for each in (F32, kind))
    changed = 0
    for parameter in plain.names.values():
        values, others = plain.weights.read(parameter), rounded.weights.read(parameter)
        if rounded.weights.stored_type(parameter) == kind.name:
            expected = gguf.dequantize(gguf.quantize(values, kind), kind)
            is_reordered = parameter.endswith(("q_proj.weight", "k_proj.weight"))  # whose rows are rounded apart
            assert np.array_equal(others, expected) or (is_reordered and np.abs(others - values).max() < 0.02)
            changed += not np.array_equal(values, others)
            if rounded.weights.block_type(parameter) is not None:
                assert np.array_equal(rounded.weights.blocks(parameter).dequantized(slice(None)), others)
            if rounded.weights.block_type(parameter) is not None:
                assert np.array_equal(rounded.weights.blocks(parameter).dequantized(slice(None)), others)
        else:
            assert np.array_equal(values, others)
    assert changed > 5


def test_old_converters_swapped_both_matrices_of_an_mlp(files: Callable[[str], Files], tmp_path: Path) -> None:
    _, file = files("gemma3")
    copy = Path(shutil.copytree(file.parent, tmp_path / "files")) / "model.gguf"
    names = [each.name for each in gguf.GGUFReader(file.with_name("mmproj.gguf")).tensors if ".ffn_" in each.name]
    part = {name: name.replace("_up", "_d").replace("_down", "_up").replace("_d.", "_down.") for name in names}
    stored = {each.name: np.array(each.data) for each in gguf.GGUFReader(file.with_name("mmproj.gguf")).tensors}
    spoilt(copy, {}, {part[name]: stored[name] for name in names})
    first, second = (opened(each) for each in (file, copy))
    assert all(np.array_equal(first.weights.read(name), second.weights.read(name)) for name in first.names.values())


def test_the_only_file_beside_a_model_is_taken_or_the_one_that_is_named(model: Path) -> None:
    source, beside = find_source(model, None), model.with_name("mmproj.gguf")
    part = find_images(source)
    assert part is not None
    assert part.files == [beside]
    other = Path(shutil.copy(beside, beside.with_name("mmproj-f16.gguf")))
    with pytest.raises(ReaderEdgeError, match=r"'mmproj-f16.gguf' and 'mmproj.gguf' beside it, .*\(--mmproj FILE\)"):
        find_images(source)
    named = find_images(source, mmproj=other)
    assert named is not None
    assert named.files == [other]
    beside.unlink()
    other.unlink()
    lines: list[str] = []
    assert find_images(source, lines.append) is None
    assert ["no file mmproj*.gguf beside it" in line for line in lines] == [True]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_what_is_no_file_sees_nothing_and_is_never_waited_for(model: Path) -> None:
    source, beside = find_source(model, None), model.with_name("mmproj.gguf")
    beside.unlink()
    for make, words in ((Path.mkdir, "is a folder, not"), (os.mkfifo, "is a pipe, not"), (Path.touch, "is empty")):
        with pytest.raises(ReaderEdgeError, match="is missing"):
            find_images(source, mmproj=beside)
        make(beside)
        assert words == "is empty" or find_images(source) is None
        with pytest.raises(ReaderEdgeError, match=words):
            find_images(source, mmproj=beside)
        beside.rmdir() if beside.is_dir() else beside.unlink()
    with pytest.raises(ReaderEdgeError, match="can be no path"):
        find_images(source, mmproj=Path("a\0"))


def test_a_model_that_reads_texts_alone_goes_by_what_lies_beside_it(model: Path) -> None:
    text = write_small(model.with_name("text.gguf"), small_vocabulary())
    lines: list[str] = []
    assert find_images(find_source(text, None), lines.append) is None
    assert lines == []
    with pytest.raises(ReaderEdgeError, match=r"for models of qwen35 .*, and 'text\.gguf' is one of llama"):
        find_images(find_source(text, None), mmproj=model.with_name("mmproj.gguf"))


@pytest.mark.parametrize(
    ("values", "tensors", "words"),
    [
        ({"clip.projector_type": "ldpv2"}, {}, "by 'ldpv2', of which qwen3vl_merger, .*--no-images"),
        ({"clip.projector_type": "gemma3"}, {}, "by 'gemma3' for models of gemma3, and 'model.gguf' is one of qwen35"),
        ({"clip.projector_type": None}, {}, "gives no clip.vision.projector_type"),
        ({"general.type": "adapter"}, {}, "nothing that sees images"),
        ({"clip.has_vision_encoder": False}, {}, "sets 'clip.has_vision_encoder' to False"),
        ({"clip.vision.projection_dim": 48}, {}, "features of 48 numbers, and 'model.gguf' has 64"),
        ({"clip.vision.block_count": 3}, {}, "lacks the tensor v.blk.2."),
        ({"clip.vision.block_count": 2000}, {}, "counts 2000 layers"),
        ({"clip.vision.block_count": 2**27}, {}, "counts 134217728 layers"),
        ({"clip.vision.embedding_length": 2**27}, {}, "more than a gigabyte"),
        ({"clip.vision.feed_forward_length": 2**27}, {}, "more than a gigabyte"),
        ({"clip.vision.patch_size": 2**27}, {}, "patch_size"),
        ({"clip.vision.patch_size": 8}, {}, r"has v.patch_embd.weight of the shape \(32, 3, 4, 4\)"),
        ({"clip.vision.spatial_merge_size": 3}, {}, "of the shape"),
        ({"clip.vision.image_mean": [0.5, 0.5]}, {}, "mean and std are three numbers"),
        ({"clip.vision.image_std": [0.5, 0.5, 0.0]}, {}, "no std is near 0"),
        ({"clip.vision.attention.layer_norm_epsilon": 1e-3}, {}, "epsilon of 0.001, where towers of its kind have"),
        ({"clip.use_gelu": False}, {}, "bends values by nothing known, not by gelu"),
        ({"clip.use_silu": True}, {}, "bends values by gelu and silu"),
        ({"clip.vision.is_deepstack_layers": [False] * 3}, {}, "tells of 3 layers whether"),
        ({}, {"v.deepstack.0.fc1.bias": np.ones(32, "f4")}, "the tensor 'v.deepstack.0.fc1.bias', for which"),
        ({"clip.vision.feature_layer": [1]}, {}, "sets 'clip.vision.feature_layer'"),
        ({}, {"v.position_embd.weight": None}, "has no such tensor for v.position_embd.weight"),
        ({}, {"v.position_embd.weight": np.zeros((60, 32), np.float32)}, "60 positions, which is no square"),
        ({}, {"v.post_ln.weight": None}, "lacks the tensor v.post_ln.weight of visual.merger.norm.weight"),
        ({}, {"mm.3.weight": np.zeros((4, 4), np.float32)}, "'mm.3.weight', for which its tower has no place"),
        ({}, {"v.blk.0.ln1.bias": np.full(32, np.nan, np.float32)}, "not finite"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(
    values: dict[str, Any], tensors: dict[str, Array | None], words: str, model: Path
) -> None:
    spoilt(model, values, tensors)
    with pytest.raises(ReaderEdgeError, match=words) as refused:
        opened(model)
    assert "\n" not in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "tensors", "words"),
    [
        ({"clip.vision.attention.head_count": 5}, {}, "cannot be computed"),
        ({"clip.vision.attention.head_count": 2**27}, {}, "cannot be "),
        ({}, {"v.blk.0.attn_qkv.weight": np.full((96, 32), np.inf, np.float32)}, "not finite"),
    ],
)
def test_a_tower_that_cannot_be_computed_is_no_package(
    values: dict[str, Any], tensors: dict[str, Array | None], words: str, model: Path, tmp_path: Path
) -> None:
    spoilt(model, values, tensors)
    with pytest.raises(ReaderEdgeError, match=words):
        export_model(model, tmp_path / "out", ExportOptions("fp32", check="none"))
    assert not (tmp_path / "out").exists()


def test_an_mmproj_that_nothing_is_made_of_is_refused(
    model: Path, files: Callable[[str], Files], tmp_path: Path
) -> None:
    runner = CliRunner()
    beside = model.with_name("mmproj.gguf")
    with pytest.raises(ReaderEdgeError, match="mmproj is for GGUF files"):
        find_images(find_source(files("qwen3_5")[0], None), mmproj=beside)
    with pytest.raises(ReaderEdgeError, match="leave out what sees images: leave mmproj out"):
        ExportOptions(has_images=False, mmproj=beside)
    result = runner.invoke(main, ["export", str(beside), str(tmp_path / "out")])
    assert (result.exit_code, "holds no model but 'mmproj'" in result.stderr) == (1, True)
    result = runner.invoke(main, ["run", "--server", "http://localhost:1", "--mmproj", str(beside), "-p", "a"])
    assert (result.exit_code, "leave --mmproj out" in result.stderr) == (2, True)
    result = runner.invoke(main, ["run", "--mmproj", str(beside), "-p", "a"])
    assert (result.exit_code, "the model is a package" in result.stderr) == (2, True)
    result = runner.invoke(main, ["serve", "a", "b", "--mmproj", str(beside)])
    assert (result.exit_code, "--mmproj is of one MODEL, and 2 are served: serve one alone" in result.stderr) == (
        2,
        True,
    )


def test_a_run_exports_again_when_what_lies_beside_its_model_changes(model: Path) -> None:
    beside = model.with_name("mmproj.gguf")
    packages = {package_of(ModelSource(model)), package_of(ModelSource(model, mmproj=model))}
    beside.write_bytes(beside.read_bytes() + bytes(32))
    packages.add(package_of(ModelSource(model)))
    beside.unlink()
    packages.add(package_of(ModelSource(model)))
    assert len(packages) == 4
