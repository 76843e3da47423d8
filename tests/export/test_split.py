"""A package cut into stages: with the bits of the whole, layers where there is room, stages that take as long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from gguf import GGMLQuantizationType as Kind

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.proof import prove
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.split.split_package import split_package
from reader_edge_export.split.stage_graphs import layer_seconds
from reader_edge_export.split.stage_ranges import ranges, stage_ends
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.drafting.drafter import NoDrafter
from reader_edge_runtime.errors import ConfigError, ExportError, PackageError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME, read_key
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.conftest import Exported
from tests.export.gguf_models import build_source, write_model
from tests.stages_here import StagesHere, assert_same_rows, pipeline_here
from tests.tiny_models import build_tiny_model

FORMS = [  # model, precision, attention, cache
    ("llama", "int8", "exact", "int8"),
    ("gemma2", "int8", "exact", "int8"),
    ("qwen2", "int4", "exact", None),
    ("gpt2", "fp32", "exact", None),
    ("gemma3_text", "fp32", "exact", None),
    ("gemma2", "fp32", "exact", "fp16"),
    ("phi", "int8", "exact", None),
    ("qwen3_moe", "int4", "exact", None),
    ("gemma4_text-experts", "int8", "exact", None),
    ("cohere2", "int8", "exact", None),
    ("granite", "int8", "exact", None),
    ("minicpm3", "int8", "exact", "int8"),
]
GB = 10**9


def assert_same_bits(package: Path, out: Path, num_stages: int) -> None:
    split_package(package, out, num_stages)
    for is_native in (True, False):
        whole = HostTarget.open(ModelPackage.open(package), 1, is_native)
        assert_same_rows(whole, pipeline_here(out, is_native), 6)


@pytest.mark.parametrize("options", FORMS, ids=lambda options: "-".join(map(str, options)))
def test_rows_have_the_bits_of_the_whole(
    options: tuple[str, str, str, str | None], exported: Exported, tmp_path: Path
) -> None:
    assert_same_bits(exported(*options, is_checked=False), tmp_path / "out", 2)


@pytest.mark.long
def test_matrices_that_stay_as_they_are_have_their_bits_too(tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    model = build_source("llama", tmp_path / "source", **changes)
    file = write_model(model, tmp_path, Kind.Q4_K)
    export_model(file, tmp_path / "package", ExportOptions("keep", check="none"))
    assert_same_bits(tmp_path / "package", tmp_path / "out", 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("lfm2", "int8", "exact"), "has recurrent layers"),
        (("gemma4_text", "int8", "exact", "int8"), "read the KV cache of others"),
        (("llama", "fp16", "exact"), "is made for other engines or devices|is in fp16"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    options: tuple[str, ...], sentence: str, exported: Exported, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=sentence):
        split_package(exported(*options, is_checked=False), tmp_path / "out", 2)
    assert not list(tmp_path.iterdir())


def test_each_stage_is_a_package_and_the_last_one_has_the_texts(exported: Exported, tmp_path: Path) -> None:
    package, out = exported("llama", "int8", "exact", is_checked=False), tmp_path / "out"
    report = split_package(package, out, 2, addresses=["tcp://10.0.0.2:5551"])
    stages = [ModelPackage.open(out / name) for name in ("1", "2")]
    for stage, manifest in zip(stages, report.manifests, strict=True):
        stage.check_files()
        assert stage.manifest == manifest
        assert (manifest.num_layers, manifest.state_ids) == (1, ())
        assert manifest.stage is not None
        assert manifest.stage.whole == ModelPackage.open(package).fingerprint().hex()
    assert [TOKENIZER_NAME in stage.manifest.files for stage in stages] == [False, True]
    opened = ModelPackage.open(out)
    assert (opened.folder, opened.addresses) == (out / "2", ("tcp://10.0.0.2:5551",))
    assert opened.key_path == out / KEY_NAME
    assert len(read_key(out / KEY_NAME)) == 32
    (out / KEY_NAME).chmod(0o644)
    with pytest.raises(PackageError, match="may be read by others"):
        read_key(out / KEY_NAME)
    with pytest.raises(ExportError, match="is a stage itself"):
        split_package(out / "1", tmp_path / "again", 2)
    with pytest.raises(ExportError, match=r"exists already: choose another folder\.$"):
        split_package(package, out, 2)
    split_package(package, tmp_path / "again", 2)
    again = [ModelPackage.open(tmp_path / "again" / name) for name in ("1", "2")]
    assert [stage.manifest for stage in again] == [stage.manifest for stage in stages]  # checksums too


def test_the_longest_stage_is_as_short_as_can_be() -> None:
    assert ranges(stage_ends([1, 1, 1, 1, 4], 2)) == [range(4), range(4, 5)]
    assert stage_ends([2, 1, 1, 1, 1, 2], 3) == [1, 4, 6]
    assert stage_ends([1] * 6, 2, cuts=[1, 2]) == [2, 6]
    assert stage_ends([1, 1, 1, 3], 2, [GB] * 4) == [3, 4]  # no boxes are named


def test_no_box_gets_what_it_has_no_room_for_and_time_decides_among_the_rest() -> None:
    sizes = [GB] * 9
    assert stage_ends([1] * 9, 2, sizes, [3 * GB, 8 * GB]) == [2, 9]
    assert stage_ends([1] * 9, 2, sizes, [8 * GB, 3 * GB]) == [7, 9]
    for costs, end in (([1] * 8 + [4], 6), ([5] + [1] * 8, 2)):
        assert stage_ends(costs, 2, sizes, [8 * GB, 16 * GB]) == stage_ends(costs, 2) == [end, 9]
        assert stage_ends(costs, 2, sizes, [8 * GB, 5 * GB]) == [max(end, 5), 9]
    assert stage_ends([1, 1, 1, 9, 1, 1], 3, [GB] * 6, [2 * GB, 3 * GB, 6 * GB], cuts=[1, 3, 4]) == [1, 3, 6]


def test_a_model_that_fits_nowhere_is_refused_with_its_need(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stage 1 needs 4\.27 GB, of which 0\.27 GB .* where its box has 4\.00 GB"):
        stage_ends([1] * 8, 2, [GB] * 8, [4 * GB, 4 * GB])
    with pytest.raises(ConfigError, match=r"276\.44 MB, of which 268\.44 MB .* where its box has 1\.00 MB"):
        stage_ends([1] * 2, 2, [8_000_000] * 2, [1_000_000] * 2)
    with pytest.raises(ConfigError, match=r"in front of these layers alone: 2\. Give fewer"):
        stage_ends([GB] * 4, 3, cuts=[2])
    with pytest.raises(ConfigError, match="A model of 3 layers has no 4 stages: give 2 to 3"):
        stage_ends([GB] * 3, 4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_deep_model_is_cut_where_no_bit_changes(name: str, tmp_path: Path) -> None:
    """No cut comes between a sum that nobody reports and the LayerNormalization that GPT-2 has behind it."""
    depth = {"n_layer": 6} if name == "gpt2" else {"num_hidden_layers": 6}
    source = build_tiny_model(name, tmp_path / "source", **depth)
    export_model(source, tmp_path / "package", ExportOptions("fp32", check="none"))
    state_ids = ModelPackage.open(tmp_path / "package").manifest.state_ids
    assert_same_bits(tmp_path / "package", tmp_path / "out", 3)
    firsts = [ModelPackage.open(tmp_path / "out" / number).manifest.stage for number in "23"]
    cuts = {part.first_layer for part in firsts if part is not None}
    assert len(cuts) == 2
    assert name == "llama" or cuts <= set(state_ids)


QUESTIONS = [EvalPrompt("# tar\n\n"), EvalPrompt("1. Save the file.\n2. Save the file.\n3.")]
SAMPLED = GenerationConfig(max_tokens=12, sampling=SamplingConfig(temperature=0.9, seed=5))
PLAIN = EngineConfig(threads=1, is_drafted=False)


def exported_package(precision: str, folder: Path) -> Path:
    changes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    model, source = build_source("llama", folder / "source", **changes), folder / "source"
    if precision == "keep":
        source = write_model(model, folder / "model.gguf", Kind.Q4_K)
    export_model(source, folder / "package", ExportOptions(precision, check="none"))
    return folder / "package"


@pytest.mark.long
@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("precision", ["int8", "int4", "keep", "fp32"])
def test_a_pipeline_is_lossless_and_answers_as_one_box(precision: str, num_stages: int, tmp_path: Path) -> None:
    package = ModelPackage.open(exported_package(precision, tmp_path))
    split_package(package.folder, tmp_path / "out", num_stages)
    piped, whole = pipeline_here(tmp_path / "out"), HostTarget.open(package, 1)

    def engine(target: Target) -> Engine:
        return Engine(package, Tokenizer.open(package), make_decoder(target, NoDrafter(), PLAIN))

    report = prove(engine(piped), QUESTIONS, 8)
    assert report.is_promise_kept
    assert sum(run.counts.tokens_compared for run in report.runs) > 1000
    assert isinstance(piped.in_flight.following, StagesHere)
    frames = [PassFrame.unpacked(memoryview(frame)) for frame in piped.in_flight.following.frames]
    assert sum(frame.wanted.num_before > 0 for frame in frames) > 100  # second passes
    for config in (SAMPLED, GenerationConfig(max_tokens=12)):
        texts = [question.prompt for question in QUESTIONS]
        found, expected = ([each.token_ids for each in engine(t).generate_batch(texts, config)] for t in (piped, whole))
        assert found == expected


SMALL_FIRST = (275_000_000, 8 * GB)  # four layers of the demo, and what a process takes


class Timed:
    """Stages that take a second for themselves, and so many for each of their layers. written: their arguments."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.written: list[tuple[range, int, int]] = []

    def write(self, folder: Path, layers: range, number: int, num_stages: int) -> None:
        self.written.append((layers, number, num_stages))

    def opened(self, package: object, threads: int) -> Mock:
        layers = self.written[-1][0]
        return Mock(pass_seconds=lambda before: 1 + sum(self.seconds[layer] for layer in layers))


@contextmanager
def timed(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> Iterator[Timed]:
    stages = Timed(seconds)
    with monkeypatch.context() as patch:
        patch.setattr("reader_edge_export.split.stage_graphs.ModelPackage", Mock())
        patch.setattr("reader_edge_export.split.stage_graphs.HostStage", Mock(open=stages.opened))
        yield stages


def test_one_layer_is_timed_for_all_that_are_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    with timed(monkeypatch, [3, 2, 2, 2, 5, 9]) as stages:
        assert layer_seconds([900, 400, 401, 399, 600, 1000], stages.write) == pytest.approx([3, 2, 2, 2, 5, 9])
    assert stages.written == [
        (range(1), 1, 3),
        (range(1, 2), 2, 3),
        (range(4, 5), 2, 3),
        (range(5, 6), 3, 3),
        (range(1, 3), 2, 3),
    ]


def test_where_no_two_are_alike_sessions_count_with_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    with timed(monkeypatch, [3, 2, 4, 9]) as stages:
        assert layer_seconds([900, 400, 800, 1000], stages.write) == [4, 3, 5, 10]


def test_stages_take_as_long_where_room_allows(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_end(layer_bytes: list[int], write_stage: Callable[..., object]) -> list[float]:
        return [1.0] * (len(layer_bytes) - 1) + [5.0]

    monkeypatch.setattr("reader_edge_export.split.stage_graphs.layer_seconds", slow_end)
    for name, boxes, layers in (("out", (), [6, 2]), ("fit", (8 * GB, 8 * GB), [6, 2]), ("less", SMALL_FIRST, [4, 4])):
        report = split_package(demo_folder, tmp_path / name, 2, boxes)
        assert [manifest.num_layers for manifest in report.manifests] == layers


def test_a_split_measures_the_layers_of_a_model(demo_folder: Path, tmp_path: Path) -> None:
    report = split_package(demo_folder, tmp_path / "out", 3)
    assert sum(manifest.num_layers for manifest in report.manifests) == 8
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "1",
        "2",
        "3",
        "pipeline.json",
        "pipeline.key",
    ]
