"""The disk space of an export, and packages run part by part: the bits of the whole, no part with more than its own."""

import shutil
from collections.abc import Set
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf import GGMLQuantizationType as Kind

from reader_edge_export import ExportOptions, export_model, package_export, package_graph
from reader_edge_export.calibration.calibrate import calibrate
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.checks import package_check
from reader_edge_export.checks.parity import TreeCase
from reader_edge_export.journal import MOMENTS_NAME, WORK_NAME
from reader_edge_export.onnx_graph.graph_parts import cut_graph
from reader_edge_export.package import package_size
from reader_edge_export.package.layered_package import LayeredPackage
from reader_edge_export.package.package_size import PackageSize, check_room
from reader_edge_export.package.pass_chain import PassChain, WholePackage
from reader_edge_export.quantize.int4 import Int4Products
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ExportError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME, PRECISIONS, SUCCESSORS_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.conftest import Exported, TinyModel
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
        "gguf": write_model(model, folder / "model.gguf", Kind.Q5_1, kinds=kinds),
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
        pytest.param("mixture", "int4", marks=pytest.mark.long),
        ("gguf", "keep"),
    ],
)
def test_sizes_are_estimated_a_little_above_what_they_are(
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
def test_moments_are_estimated_of_every_architecture(model_type: str, tiny_model: TinyModel) -> None:
    model, file = layered(tiny_model(model_type)), BytesIO()
    calibrate(model, [[5]], Calibration(file))
    size = PackageSize.of(model.source, ExportOptions("int8"))
    assert len(file.getvalue()) == size.moments


def test_all_that_takes_space_is_counted(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_small_disk_is_refused_before_the_work(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=20_000_000))
    monkeypatch.setattr(package_export, "trace_model", None)  # calling it would fail
    monkeypatch.setattr(PackageSize, "of", lambda *_: PackageSize(19_000_000, 8_000_000, 1))
    with pytest.raises(ExportError, match=r"takes 0\.03 GB on the disk of '.*', which has 0\.02 GB left"):
        export_model(source, tmp_path / "packages" / "out", ExportOptions("int8"))
    assert list((tmp_path / "packages").iterdir()) == []


def test_room_is_checked_before_int4_rounds(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 100).tolist()
A_LAYER = 1  # bytes that every layer exceeds
FORMS = [  # model, precision, attention, cache
    ("llama", "int8", "exact", "int8"),
    ("gemma2", "int8", "exact", "int8"),
    ("llama", "int8", "exact", "fp16"),
    ("qwen2", "int4", "exact", None),
    ("gpt2", "fp32", "exact", None),
    ("gemma3_text", "fp32", "exact", None),
    ("gemma2", "fp32", "exact", "fp16"),
    ("phi", "int8", "exact", None),
    ("lfm2", "int8", "exact", None),
    ("qwen3_5_text", "fp32", "exact", None),
    ("gemma4_text", "int8", "exact", "int8"),
    ("gemma4_text", "fp32", "exact", "fp16"),
    ("qwen3_moe", "int4", "exact", None),
    ("gemma4_text-experts", "int8", "exact", None),
    ("llama", "fp32", "fast", None),
    ("gpt2", "fp32", "fast", None),
    ("mistral", "int8", "fast", None),
]


def chains(package: ModelPackage) -> list[PassChain]:
    """A tree over a ragged batch and garbage, chunks of a text, one token at a time, and wide trees behind a prompt."""
    tree = DraftTree.root(TEXT[10])
    for token_id in TEXT[11:40]:
        tree.add(token_id, 0, "")
    return [
        TreeCase.draw(package.manifest, TEXT).chain(),
        PassChain.of_text([], TEXT, 64),
        PassChain.of_text(TEXT[:20], TEXT[20:30], 1),
        PassChain([TEXT[:10]], [Pass(0, [tree], [range(1, len(tree))])] * 2),
    ]


def assert_same_bits(package: ModelPackage, layered: LayeredPackage) -> None:
    whole, wanted = WholePackage(HostTarget.open(package)), chains(package)
    num_results = 0
    for result, expected in zip(layered.results(wanted), whole.results(wanted), strict=True):
        np.testing.assert_array_equal(result.top_ids, expected.top_ids)
        np.testing.assert_array_equal(result.top_logits, expected.top_logits)
        if expected.logits is not None:
            np.testing.assert_array_equal(result.wanted_logits, expected.logits)
        num_results += 1
    assert num_results == 1 + 2 + 10 + 2


@pytest.mark.parametrize("options", FORMS, ids=lambda options: "-".join(map(str, options)))
def test_passes_have_the_bits_of_the_whole(
    options: tuple[str, str, str, str | None], exported: Exported, tmp_path: Path
) -> None:
    package = ModelPackage.open(exported(*options, is_checked=False))
    assert_same_bits(package, LayeredPackage(package, tmp_path, A_LAYER))
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_matrices_that_stay_as_they_are_have_their_bits_too(tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    model = build_source("llama", tmp_path / "source", **changes)
    file = write_model(model, tmp_path, Kind.Q4_K)
    export_model(file, tmp_path / "out", ExportOptions("keep", check="none"))
    package = ModelPackage.open(tmp_path / "out")
    assert_same_bits(package, LayeredPackage(package, tmp_path, A_LAYER))


@pytest.mark.long
def test_a_part_has_one_layer_or_as_many_as_fit_and_their_weights_alone(tmp_path: Path) -> None:
    source = build_tiny_model("llama", tmp_path / "source", num_hidden_layers=4, tie_word_embeddings=False)
    export_model(source, tmp_path / "out", ExportOptions("int8", check="none"))
    package = ModelPackage.open(tmp_path / "out")
    layers = parts_of(package, A_LAYER)
    assert [sorted(past_names(part)) for part in layers] == [
        [f"past_{kind}.{layer}" for kind in ("key", "value")] for layer in range(4)
    ]
    _, *inner, last = sizes = [num_weight_bytes(part) for part in layers]
    assert len(set(inner)) == 1
    assert max(sizes) == last < 0.5 * (package.folder / WEIGHTS_NAME).stat().st_size
    pairs = parts_of(package, 2 * inner[0])
    assert [len(past_names(part)) for part in pairs] == [4, 2, 2]
    assert max(map(num_weight_bytes, pairs)) <= 2 * inner[0]
    assert [len(past_names(part)) for part in parts_of(package, 1 << 30)] == [8]
    for part in layers:
        assert part.functions.keys() == ir.load(package.folder / GRAPH_NAME).functions.keys()
    assert_same_bits(package, LayeredPackage(package, tmp_path, 2 * inner[0]))


@pytest.mark.parametrize("is_whole", [True, False])
def test_passes_tell_of_their_tokens_as_they_are_done(is_whole: bool, exported: Exported, tmp_path: Path) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    runner = WholePackage(HostTarget.open(package)) if is_whole else LayeredPackage(package, tmp_path, A_LAYER)
    done_of: list[float] = []
    wanted = chains(package)
    first = next(runner.results(wanted, done_of.append))
    assert first.logits is not None
    done = sum(done_of)
    assert 0 < done < sum(chain.num_tokens for chain in wanted)
    assert (done > 100) == (not is_whole)  # by then, half of the parts are done with all of the tokens
    done_of.clear()
    list(runner.results(wanted, done_of.append))
    assert sum(done_of) == pytest.approx(sum(chain.num_tokens for chain in wanted))


def test_what_crosses_a_cut_is_what_a_layer_and_those_behind_it_read(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    first, second = cut_graph(ir.load(package.folder / GRAPH_NAME), package.manifest, A_LAYER)
    assert first.live == frozenset()
    assert len(second.live) == 3  # hidden states, cosines and sines
    reported = {"present_key.0", "present_value.0", "layer_state.0"}
    assert second.live == {value.name for value in first.model.graph.outputs} - reported
    assert second.live < {value.name for value in second.model.graph.inputs}


@pytest.mark.long
def test_checks_by_parts_have_the_same_figures(
    exported: Exported, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ModelPackage.open(exported("llama", "int8", "exact"))
    monkeypatch.setattr(package_check, "_MAX_WHOLE_BYTES", 0)
    monkeypatch.setattr(LayeredPackage.__init__, "__defaults__", (A_LAYER,))
    monkeypatch.setattr(HostTarget, "open", None)  # calling it would fail
    layered = export_model(source, tmp_path / "layered", ExportOptions("int8"))
    assert layered.checks == whole.manifest.checks
    names, others = ({path.name for path in folder.iterdir()} for folder in (whole.folder, layered.out))
    assert names == others
    for name in names - {"reader_edge.json"}:
        assert (layered.out / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_part_that_cannot_be_loaded_is_one_sentence(exported: Exported, tmp_path: Path) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    layered = LayeredPackage(ModelPackage(package.folder, package.manifest), tmp_path)
    layered._weights = tmp_path / WEIGHTS_NAME  # not there
    with pytest.raises(ProviderError, match="cannot load part of a graph"):
        list(layered.results(chains(package)))


def parts_of(package: ModelPackage, max_part_bytes: int) -> list[ir.Model]:
    parts = cut_graph(ir.load(package.folder / GRAPH_NAME), package.manifest, max_part_bytes)
    return [part.model for part in parts]


def past_names(part: ir.Model) -> list[str]:
    return [str(value.name) for value in part.graph.inputs if str(value.name).startswith("past_")]


def num_weight_bytes(part: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in part.graph.initializers.values() if value.const_value is not None)
