"""Stages have the bits of the whole package, layers go where there is room, and what cannot be cut is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.split.split_package import split_package
from reader_edge_export.split.stage_ranges import ranges, stage_ends
from reader_edge_runtime.errors import ConfigError, ExportError, PackageError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME, read_key
from tests.export.gguf_models import build_source, write_model
from tests.stages_here import assert_same_rows, pipeline_here
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
]
Exported = Callable[..., Path]
GB = 10**9


def assert_same_bits(package: Path, out: Path, num_stages: int) -> None:
    split_package(package, out, num_stages)
    for is_native in (True, False):
        whole = HostTarget.open(ModelPackage.open(package), 1, is_native)
        assert_same_rows(whole, pipeline_here(out, is_native), 6)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_all_rows_have_the_bits_of_the_whole_package(
    form: tuple[str, str, str, str | None], exported: Exported, tmp_path: Path
) -> None:
    assert_same_bits(exported(*form, is_checked=False), tmp_path / "out", 2)


def test_matrices_that_stay_as_they_are_have_their_bits_too(tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    model = build_source("llama", tmp_path / "source", **changes)
    file = write_model(model, tmp_path / "source", tmp_path / "model.gguf", Kind.Q4_K)
    export_model(file, tmp_path / "package", ExportOptions("keep", check="none"))
    assert_same_bits(tmp_path / "package", tmp_path / "out", 3)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (("lfm2", "int8", "exact"), "has recurrent layers"),
        (("gemma4_text", "int8", "exact", "int8"), "read the KV cache of others"),
        (("llama", "fp16", "exact"), "is made for other engines or devices|is in fp16"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_sentence(
    form: tuple[str, ...], sentence: str, exported: Exported, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=sentence):
        split_package(exported(*form, is_checked=False), tmp_path / "out", 2)
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


def test_a_model_that_fits_nowhere_is_told_what_it_needs(tmp_path: Path) -> None:
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
