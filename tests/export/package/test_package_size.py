"""The disk space of an export: estimated a little above what it takes, and refused where it is not there."""

import shutil
from collections.abc import Callable, Set
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from reader_edge_export import ExportOptions, export_model, package_export, package_graph
from reader_edge_export.calibration.calibrate import calibrate
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.journal import MOMENTS_NAME, WORK_NAME
from reader_edge_export.package import package_size
from reader_edge_export.package.package_size import PackageSize, check_room
from reader_edge_export.quantize.int4 import Int4Products
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import GRAPH_NAME, PRECISIONS, SUCCESSORS_NAME, WEIGHTS_NAME
from tests.export.gguf_models import build_source, write_model
from tests.export.source_models import layered, open_source
from tests.tiny_models import TINY_MODELS, VOCAB_SIZE, build_tiny_model

# Wide enough that what is small for any real model is small here too.
_SIZES = {"hidden_size": 512, "intermediate_size": 1280, "num_key_value_heads": 4}
_MIXTURE = {"moe_intermediate_size": 320, "num_experts": 6, "head_dim": 128, "hidden_size": 512}
_KINDS = {"token_embd": "Q6_K", "output": "Q8_0", "blk.0.attn_q": "Q4_K", "blk.0.ffn_up": "Q5_K", "blk.1.attn_k": "F16"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name: folders of a llama whose embedding is its head, one with two matrices, a mixture of experts; a GGUF file
    of types."""
    folder = tmp_path_factory.mktemp("sources")
    model = build_source("llama", folder / "two", **_SIZES, tie_word_embeddings=False)
    kinds = {f"{name}.weight": Kind[kind] for name, kind in _KINDS.items()}
    return {
        "tied": build_tiny_model("llama", folder / "tied", **_SIZES),
        "two": folder / "two",
        "mixture": build_tiny_model("qwen3_moe", folder / "mixture", **_MIXTURE),
        "gguf": write_model(model, folder / "two", folder / "model.gguf", Kind.Q5_1, kinds=kinds),
    }


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of the moments of each export that is done."""
    sizes: list[int] = []
    write_graph = package_graph.write_graph

    def measured(traced: Path, folder: Path, *others: Any, **named: Any) -> Any:
        sizes.append((folder / WORK_NAME / MOMENTS_NAME).stat().st_size)
        return write_graph(traced, folder, *others, **named)

    monkeypatch.setattr(package_export, "write_graph", measured)
    return sizes


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(("tied", precision) for precision in PRECISIONS if precision != "keep"),
        ("two", "int8"),
        ("two", "int4"),
        ("mixture", "fp32"),
        ("mixture", "int8"),
        ("mixture", "int4"),
        ("gguf", "keep"),
    ],
)
def test_sizes_are_foretold_a_little_above_what_they_are(
    name: str,
    precision: str,
    sources: dict[str, Path],
    moments: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[PackageSize] = []
    monkeypatch.setattr(package_export, "check_room", lambda _, size: sizes.append(size))
    export_model(sources[name], tmp_path / "out", ExportOptions(precision, "exact", check="none"))
    weights = (tmp_path / "out" / WEIGHTS_NAME).stat().st_size
    if precision == "int4":  # how much of a model is left in eight bits is not known before it is calibrated
        assert sizes[0].is_least
        assert 0.7 * weights < sizes[0].weights < weights
    assert not sizes[-1].is_least
    assert weights <= sizes[-1].weights <= 1.01 * weights
    assert {size.moments for size in sizes} == {sizes[0].moments}
    assert moments[0] <= sizes[0].moments <= 1.01 * moments[0]


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_moments_are_foretold_of_every_architecture(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    model, file = layered(tiny_model(model_type)), BytesIO()
    calibrate(model, [[5]], Calibration(file))
    size = PackageSize.of(model.source, ExportOptions("int8"))
    assert len(file.getvalue()) == size.moments


def test_what_is_beside_weights_and_moments_is_counted(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_source(tiny_model("llama"))
    one, other = (PackageSize.of(model, ExportOptions("bf16", "fast", check=check)) for check in ("none", "full"))
    assert (one.weights, one.moments) == (other.weights, other.moments)
    assert other.others - one.others == 4 * model.num_parameters + 64 * VOCAB_SIZE
    monkeypatch.setattr(package_size, "MAX_PART_BYTES", 1)  # of a large model's twin one part at a time is written
    part = PackageSize.of(model, ExportOptions("bf16", "fast", check="quick")).others - one.others
    assert 4 * model.num_parameters / 2 < part < 4 * model.num_parameters
    export_model(tiny_model("llama"), tmp_path / "out", ExportOptions("fp32"))
    files = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert files[SUCCESSORS_NAME] - 64 * VOCAB_SIZE < 1000
    assert files[GRAPH_NAME] < one.others


def test_a_disk_that_is_too_small_is_told_before_the_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=20_000_000))
    monkeypatch.setattr(package_export, "trace_model", None)  # calling it would fail
    monkeypatch.setattr(PackageSize, "of", lambda *_: PackageSize(19_000_000, 8_000_000, 1))
    with pytest.raises(ExportError, match=r"takes 0\.03 GB on the disk of '.*', which has 0\.02 GB left"):
        export_model(source, tmp_path / "packages" / "out", ExportOptions("int8"))
    assert list((tmp_path / "packages").iterdir()) == []


def test_room_for_the_matrices_in_eight_bits_is_looked_for_before_any_is_rounded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_of = PackageSize.of

    def grown(model: SourceModel, options: ExportOptions, in_eight_bits: Set[str] | None = None) -> PackageSize:
        size = size_of(model, options, in_eight_bits)
        return size if in_eight_bits is None else replace(size, others=1 << 60)

    monkeypatch.setattr(PackageSize, "of", grown)
    monkeypatch.setattr(Int4Products, "multiply_stored", None)  # calling it would fail
    with pytest.raises(ExportError, match=r"The export takes \d+\.\d\d GB on the disk"):
        export_model(source, tmp_path / "packages" / "out", ExportOptions("int4"))
    assert list((tmp_path / "packages").iterdir()) == []


def test_what_a_killed_export_left_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    (tmp_path / WEIGHTS_NAME).write_bytes(bytes(500))
    (tmp_path / WORK_NAME).mkdir()
    (tmp_path / WORK_NAME / MOMENTS_NAME).write_bytes(bytes(200))
    check_room(tmp_path, PackageSize(1000, 600, 100))
    with pytest.raises(ExportError):
        check_room(tmp_path, PackageSize(1000, 600, 101))
