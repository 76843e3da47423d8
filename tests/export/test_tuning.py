"""What tuning adds to a package, its table of successors, and that nothing else changes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from reader_edge import Engine, EngineConfig, GenerationConfig
from reader_edge.cli import main
from reader_edge.terminal.formatting import readable_size
from reader_edge_export import ExportOptions, export_model, tuning
from reader_edge_export.package import successors
from reader_edge_export.package.pass_chain import WholePackage
from reader_edge_export.tuning import tune_package
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.errors import ExportError, PackageError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.conftest import Exported, TinyModel
from tests.export.source_models import logits_after
from tests.tiny_models import VOCAB_SIZE


@pytest.fixture(scope="module")
def unmeasured(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package as a first start makes it of weights that stay as they are; not to be changed."""
    out = tmp_path_factory.mktemp("unmeasured") / "package"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reader_edge_export.package_export.check_chats", None)  # no conversation is rendered either
        export_model(tiny_model("llama"), out, ExportOptions("int8", check="none"))
    return out


@pytest.fixture
def package(unmeasured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unmeasured, tmp_path / "package"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def info(package: Path) -> str:
    """By `info`."""
    return CliRunner().invoke(main, ["info", str(package)]).stdout


def test_a_tuned_package_is_a_fully_checked_export(package: Path, tiny_model: TinyModel, exported: Exported) -> None:
    report = tune_package(package, tiny_model("llama"))
    whole, tuned = ModelPackage.open(exported("llama", "int8", "exact")), ModelPackage.open(package)
    tuned.check_files()
    assert (report.manifest, report.num_table_tokens, report.warning) == (tuned.manifest, VOCAB_SIZE, None)
    assert tuned.manifest.checks == pytest.approx(whole.manifest.checks)
    assert tuned.manifest.files == whole.manifest.files
    assert sorted(path.name for path in package.iterdir()) == sorted(path.name for path in whole.folder.iterdir())


def test_without_its_source_a_package_gets_a_table_and_later_its_figures(package: Path, tiny_model: TinyModel) -> None:
    alone = tune_package(package, None).manifest
    assert (alone.is_tuned, alone.is_measured) == (True, False)
    assert "yes, but not measured: `reader-edge tune --source`" in info(package)
    table = (package / SUCCESSORS_NAME).read_bytes()
    phases: list[str] = []
    measured = tune_package(package, tiny_model("llama"), phases.append).manifest
    assert measured.is_measured
    assert re.search(r"^tuned +yes$", info(package), re.MULTILINE)
    assert measured.files == alone.files
    assert (package / SUCCESSORS_NAME).read_bytes() == table
    expected = ["checking the package", "reading the source", "comparing conversations", "checking against the source"]
    assert phases == expected


def test_who_uses_a_package_goes_on(package: Path) -> None:
    config = GenerationConfig(max_tokens=10, ignores_eos=True)
    engine = Engine.load(package, EngineConfig(is_calibrated=False))
    before = engine.generate("the cat", config).token_ids
    tune_package(package, None)
    assert engine.generate("the cat", config).token_ids == before
    assert Engine.load(package, EngineConfig(is_calibrated=False)).generate("the cat", config).token_ids == before
    assert ModelPackage.open(package).fingerprint() == engine.package.fingerprint()


def test_another_models_files_are_no_source(package: Path, tiny_model: TinyModel) -> None:
    before = contents(package)
    with pytest.raises(ExportError, match=r"was not exported from '.*granite'.*: give its own source \('llama'\)"):
        tune_package(package, tiny_model("granite"))
    assert contents(package) == before


@pytest.mark.parametrize("place", ["measure_successors", "write_manifest"])
def test_an_ended_tuning_changes_no_package(package: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = contents(package)
    owner = "checks.package_check" if place == "measure_successors" else "tuning"
    with monkeypatch.context() as patch:
        patch.setattr(f"reader_edge_export.{owner}.{place}", end)
        with pytest.raises(KeyboardInterrupt):
            tune_package(package, None)
    after = contents(package)
    after.pop(SUCCESSORS_NAME, None)  # which no manifest lists yet
    assert after == before
    ModelPackage.open(package).check_files()
    assert tune_package(package, None).manifest.is_tuned


def test_a_killed_tunings_folder_is_removed_by_the_next(package: Path) -> None:
    (package / ".tuning.partial-999999999-1").mkdir()
    tune_package(package, None)
    assert not list(package.glob(".*"))


def test_a_spoilt_package_is_refused_before_anything_is_measured(package: Path) -> None:
    with (package / WEIGHTS_NAME).open("r+b") as file:
        file.write(b"spoilt")
    with pytest.raises(PackageError, match="differs from its checksum"):
        tune_package(package, None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), r"cannot be written \(Permission denied\): copy the package to a"),
        (OSError(28, "No space left on device"), r"The disk of '.*' is full: free some space and tune it again"),
    ],
)
def test_unwritable_packages_are_refused_first(
    package: Path, error: OSError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(tuning, "check_writable", refuse)
    with pytest.raises((PackageError, ExportError), match=words):
        tune_package(package, None)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_packages_for_devices_are_tuned_on_the_cpu(precision: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(tiny_model("llama"), out, ExportOptions(precision, "fast", check="none"))
    manifest = tune_package(out, tiny_model("llama")).manifest
    assert manifest.checks["top1_agreement"] > 0.9
    assert manifest.is_tuned


def test_the_size_of_a_package_tells_about_how_many_parameters_it_has(exported: Exported) -> None:
    precise = successors.about_num_parameters(ModelPackage.open(exported("llama", "fp32", "exact")).manifest)
    rounded = successors.about_num_parameters(ModelPackage.open(exported("llama", "int8", "exact")).manifest)
    assert 0.5 < rounded / precise < 3  # of a tiny model, much is graph


def table_of(package: ModelPackage) -> SuccessorTable:
    table = SuccessorTable.of_package(package, Tokenizer.open(package).fingerprint())
    assert table is not None
    return table


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_table_is_what_decoding_says_after_each_token(exported: Exported, precision: str) -> None:
    package = ModelPackage.open(exported("llama", precision, "exact"))
    table, target = table_of(package), HostTarget.open(package)
    question = Tokenizer.open(package).encode_chat(Conversation([{"role": "user", "content": "Tell me something."}]))
    question = question[-package.manifest.max_context // 2 :]
    assert table.token_ids.shape == (VOCAB_SIZE, package.manifest.top_k)
    for token in (0, 7, VOCAB_SIZE - 1):
        logits = logits_after(target, question, [token], 1)[0]
        assert table.token_ids[token].tolist() == np.argsort(-logits, kind="stable")[: package.manifest.top_k].tolist()
        np.testing.assert_array_equal(table.logits[token], logits[table.token_ids[token]])


def test_info_tells_of_the_table_and_of_hidden_states(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    info = CliRunner().invoke(main, ["info", str(package.folder)]).stdout
    manifest, size = package.manifest, package.path("successors.bin").stat().st_size
    assert f"{manifest.hidden_size} numbers a token" in info
    assert f"{manifest.top_k} successors of {VOCAB_SIZE} tokens, {readable_size(size)} (successors.bin)" in info
    fields = json.loads(CliRunner().invoke(main, ["info", str(package.folder), "--json"]).stdout)
    assert (fields["num_table_tokens"], fields["hidden_size"]) == (VOCAB_SIZE, manifest.hidden_size)


def test_large_vocabularies_get_their_first_tokens() -> None:
    assert successors.num_table_tokens(49_152, 135_000_000) < 49_152
    assert successors.num_table_tokens(VOCAB_SIZE, 1000) == VOCAB_SIZE


def test_a_tuning_asks_large_models_for_more_tokens_up_to_where_more_bring_little() -> None:
    small, middling, large = (
        [successors.num_table_tokens(150_000, size, slowdown) for slowdown in (1, 10)]
        for size in (100_000_000, 500_000_000, 7_000_000_000)
    )
    assert small == [22_000, 22_000]
    assert middling == [4_400, 16_384]
    assert large == [314, 3_140]


def test_a_table_fits_a_short_context(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "out", ExportOptions(precision="fp32", max_context=24))
    assert len(table_of(ModelPackage.open(tmp_path / "out"))) == VOCAB_SIZE


def test_a_vocabulary_without_the_questions_letters_has_a_table_too(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    model = Tokenizer(FastTokenizer(BPE({"1": 0}, [])))
    assert model.encode("Tell me something.") == []
    assert len(successors.measure_successors(WholePackage(HostTarget.open(package)), model, 9)) == 9
