"""Tuning gives a package what its export left out, and changes nothing else of it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge import Engine, EngineConfig, GenerationConfig
from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model, tuning
from reader_edge_export.package import successors
from reader_edge_export.tuning import tune_package
from reader_edge_runtime.errors import ExportError, PackageError
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from tests.tiny_models import VOCAB_SIZE

TinyModel = Callable[[str], Path]


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


def told(package: Path) -> str:
    """By `info`."""
    return CliRunner().invoke(main, ["info", str(package)]).stdout


def test_a_tuned_package_is_what_an_export_with_all_checks_makes(
    package: Path, tiny_model: TinyModel, exported: Callable[..., Path]
) -> None:
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
    assert "yes, but not measured: `reader-edge tune --source`" in told(package)
    table = (package / SUCCESSORS_NAME).read_bytes()
    stages: list[str] = []
    measured = tune_package(package, tiny_model("llama"), stages.append).manifest
    assert measured.is_measured
    assert re.search(r"^tuned +yes$", told(package), re.MULTILINE)
    assert measured.files == alone.files
    assert (package / SUCCESSORS_NAME).read_bytes() == table
    expected = ["checking the package", "reading the source", "comparing conversations", "checking against the source"]
    assert stages == expected


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
def test_what_ends_a_tuning_leaves_the_package_what_it_was(
    package: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_package_that_cannot_be_written_is_told_first(
    package: Path, error: OSError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(tuning, "check_writable", refuse)
    with pytest.raises((PackageError, ExportError), match=words):
        tune_package(package, None)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_packages_for_devices_are_tuned_on_the_cpu(precision: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(tiny_model("llama"), out, ExportOptions(precision, "fast", check="none"))
    manifest = tune_package(out, tiny_model("llama")).manifest
    assert manifest.checks["top1_agreement"] > 0.9
    assert manifest.is_tuned


def test_the_size_of_a_package_tells_about_how_many_parameters_it_has(exported: Callable[..., Path]) -> None:
    precise = successors.about_num_parameters(ModelPackage.open(exported("llama", "fp32", "exact")).manifest)
    rounded = successors.about_num_parameters(ModelPackage.open(exported("llama", "int8", "exact")).manifest)
    assert 0.5 < rounded / precise < 3  # of a tiny model, much is graph
