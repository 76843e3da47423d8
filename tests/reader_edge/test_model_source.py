"""Which package MODEL means."""

import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from filelock import FileLock
from rich.console import Console

from reader_edge.cli import main
from reader_edge.models.catalogue import canonical
from reader_edge.models.exported import ModelSource
from reader_edge.models.model_source import (
    bundled_demo,
    find_package,
    find_source,
    find_stored,
    load_engine,
    model_name,
)
from reader_edge.models.store import StoredModel
from reader_edge_export import pipeline
from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.errors import (
    CatalogueError,
    GgufError,
    InstallationError,
    PackageError,
    UnsupportedArchitectureError,
)
from tests.reader_edge.package_copy import PackageCopy


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, demo_folder: Path) -> list[str]:
    """Names that were exported; each became a copy of the demo package."""
    names: list[str] = []

    def export_model(
        source: Path,
        out: Path,
        options: ExportOptions,
        on_phase: object,
        name: str | None,
        on_message: object,
        on_share: object,
    ) -> ExportReport:
        assert (options.precision, options.attention, options.check) == ("auto", "exact", "auto")
        names.append(name or str(source))
        PackageCopy(demo_folder, out)
        return ExportReport(out, 1, options.precision, options.attention, {}, {}, warning="it strays")

    monkeypatch.setattr(pipeline, "export_model", export_model)
    return names


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_no_model_means_the_bundled_demo(demo_folder: Path) -> None:
    assert find_package(None) == bundled_demo() == demo_folder


@pytest.mark.parametrize("find", [find_package, find_stored, model_name])
def test_an_empty_name_is_no_model(find: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PackageError, match="name is empty: give a package"):
        find("")
    monkeypatch.setenv("READER_EDGE_MODEL", "")  # a variable set to nothing is none
    assert find_package(None) == bundled_demo()


def test_a_package_folder_means_itself(demo_folder: Path) -> None:
    assert find_package(str(demo_folder)) == demo_folder


def test_the_environment_comes_before_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "reader_edge.json").touch()
    monkeypatch.setenv("READER_EDGE_MODEL", str(mine))
    assert find_package(None) == find_stored(None) == mine
    assert find_package(str(other)) == find_stored(str(other)) == other


def test_a_path_that_leads_nowhere_is_shown_with_what_may_be_given(tmp_path: Path) -> None:
    for model in (str(tmp_path / "qwen"), "nosuch.gguf", "nosuchmodel"):
        with pytest.raises(PackageError, match=r"There is nothing at .*, a GGUF file, or a name"):
            find_package(model)


def test_what_is_here_of_a_name_is_its_source_until_it_is_exported(exported: list[str]) -> None:
    with pytest.raises(CatalogueError, match="`reader-edge pull owner/stored` fetches it"):
        find_stored("owner/stored")
    stored = StoredModel("owner/stored")
    with stored.locked():
        stored.partial("hub").mkdir()
        (stored.partial("hub") / "model.gguf").write_bytes(b"GGUF")
        stored.finish(stored.partial("hub"))
    assert find_stored("owner/stored") == stored.source()
    assert not exported
    assert find_stored("owner/stored") != find_package("owner/stored")
    assert find_stored("owner/stored") == find_package("owner/stored")


def test_an_installed_demo_lies_beside_code(monkeypatch: pytest.MonkeyPatch, demo_folder: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("reader_edge.models.model_source.__file__", str(tmp_path / "models" / "model_source.py"))
    assert PackageCopy(demo_folder, tmp_path / "demo").folder == bundled_demo()


def test_an_installation_without_the_demo_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("reader_edge.models.model_source.__file__", str(tmp_path / "models" / "model_source.py"))
    with pytest.raises(PackageError, match="has no demo model"):
        bundled_demo()


def test_a_folder_is_exported_once_and_again_when_it_changed(exported: list[str], source_folder: Path) -> None:
    first = find_package(str(source_folder))
    assert find_package(str(source_folder)) == first
    assert len(exported) == 1
    os.utime(source_folder / "config.json", (1, 1))
    second = find_package(str(source_folder))
    assert second != first
    assert len(exported) == 2
    assert [part.what for part in StoredModel(str(source_folder)).parts()] == ["package, int8"]  # none of what was


def test_an_export_leaves_other_kinds_and_versions(exported: list[str], source_folder: Path, demo_folder: Path) -> None:
    stored = StoredModel(str(source_folder))
    others = [stored.folder / f"gguf-{'0' * 16}", stored.folder / f"int8-{'0' * 16}"]
    for place in others:
        PackageCopy(demo_folder, place)
    manifest = json.loads((others[1] / "reader_edge.json").read_text())
    (others[1] / "reader_edge.json").write_text(json.dumps(manifest | {"format_version": 99}))
    package = find_package(str(source_folder))
    assert sorted(path for path in stored.folder.iterdir() if path.is_dir()) == sorted([*others, package])


def test_a_gguf_file_is_exported_once_and_again_when_it_changed(exported: list[str], tmp_path: Path) -> None:
    path = tmp_path / "sha256-0123"  # as Ollama names them
    path.write_bytes(b"GGUF")
    first = find_package(str(path))
    assert find_package(str(path)) == first
    assert exported == [str(path)]
    path.write_bytes(b"GGUFs")
    assert find_package(str(path)) != first


@pytest.mark.parametrize("name", ["owner/name", "SmolLM2:135M"])
def test_a_name_is_exported_once(
    exported: list[str], source_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("reader_edge.models.model_source.pulled", {name: source_folder}.__getitem__)
    assert find_package(name) == find_package(name)
    assert exported == [canonical(name)]
    assert find_source(name) == ModelSource(source_folder, canonical(name))


def test_nothing_is_fetched_where_nothing_could_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.libraries.util.find_spec", lambda name: None)
    monkeypatch.setattr("reader_edge.models.model_source.pulled", None)  # calling it would fail
    with pytest.raises(InstallationError, match="Exporting needs torch"):
        find_package("owner/name")


@pytest.mark.parametrize("find", [find_package, find_stored])
def test_a_misspelt_name_is_refused_first(monkeypatch: pytest.MonkeyPatch, find: Callable[[str], object]) -> None:
    monkeypatch.setattr("reader_edge_export.libraries.util.find_spec", lambda name: None)
    with pytest.raises(CatalogueError, match=r"no model 'smolm2:135m': did you mean smollm2:135m\?"):
        find("smolm2:135m")
    with pytest.raises(PackageError, match=r"nothing at 'smolm2'.* Did you mean smollm2\?$"):
        find("smolm2")
    with pytest.raises(PackageError, match=r"nothing at 'https://hf\.co/owner/name'.* Did you mean owner/name\?$"):
        find("https://hf.co/owner/name")


def test_a_file_of_another_kind_is_refused_first(monkeypatch: pytest.MonkeyPatch, source_folder: Path) -> None:
    monkeypatch.setattr("reader_edge_export.libraries.util.find_spec", lambda name: None)
    (source_folder / "x.gguf").write_text("hello")
    with pytest.raises(GgufError, match="is no GGUF file: give"):
        find_package(str(source_folder / "x.gguf"))
    (source_folder / "config.json").write_text('{"model_type": "sphinx"}')
    with pytest.raises(UnsupportedArchitectureError, match="'sphinx' cannot be exported"):
        find_package(str(source_folder))


def test_warnings_are_shown_once(exported: list[str], source_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        find_package(str(source_folder))
    shown = capsys.readouterr().err
    assert shown.count("Warning: it strays\n") == 1
    assert shown.count(f"`reader-edge tune {source_folder}` measures its quality, and lets it draft better.\n") == 1


def test_two_starts_export_once(
    monkeypatch: pytest.MonkeyPatch, demo_folder: Path, source_folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    num_requested = threading.Semaphore(0)
    exported: list[Path] = []

    class Lock(FileLock):
        def acquire(self, *args: Any, **options: Any) -> Any:
            num_requested.release()
            return super().acquire(*args, **options)

    def export_model(
        source: Path,
        out: Path,
        options: ExportOptions,
        on_phase: object,
        name: str | None,
        on_message: object,
        on_share: object,
    ) -> ExportReport:
        exported.append(out)
        assert all(num_requested.acquire(timeout=60) for _ in range(2))
        PackageCopy(demo_folder, out)  # raises where another did so before
        return ExportReport(out, 1, options.precision, options.attention, {}, {})

    monkeypatch.setattr("reader_edge.models.store.FileLock", Lock)
    monkeypatch.setattr(pipeline, "export_model", export_model)
    with ThreadPoolExecutor(2) as pool:
        packages = set(pool.map(find_package, [str(source_folder)] * 2))
    assert packages == set(exported)
    assert len(exported) == 1


def test_paths_below_folders_are_no_ids(
    exported: list[str], monkeypatch: pytest.MonkeyPatch, source_folder: Path
) -> None:
    monkeypatch.chdir(source_folder.parent)
    with pytest.raises(PackageError, match="There is nothing at 'model/name'"):
        find_package("model/name")
    assert exported == []


def test_exports_land_in_the_user_s_cache(
    exported: list[str], source_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = find_package(str(source_folder))
    assert package.parent == StoredModel(str(source_folder)).folder
    assert package.parent.parent == tmp_path / "reader-edge" / "models"
    assert [part.what for part in StoredModel(str(source_folder)).parts()] == ["package, int8"]


def test_an_unknown_architecture_is_one_sentence_and_leaves_nothing(
    runner: CliRunner, source_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (source_folder / "config.json").write_text('{"model_type": "sphinx"}')
    result = runner.invoke(main, ["run", str(source_folder), "-p", "# tar"])
    assert result.exit_code == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("Error: The model type 'sphinx' cannot be exported; supported are: ")
    assert not list((tmp_path / "cache").rglob("reader_edge.json"))
    assert not list((tmp_path / "cache").rglob("*.partial*"))


@pytest.mark.parametrize(("is_terminal", "level"), [(False, logging.WARNING), (True, logging.INFO)])
def test_a_measuring_is_a_line_in_a_pipe_and_a_bar_on_a_terminal(
    is_terminal: bool,
    level: int,
    demo_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("reader_edge_runtime.measuring.cost_cache.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("reader_edge_runtime.measuring.pass_cost._seconds", lambda *_: 0.05)
    monkeypatch.setattr(Console, "is_terminal", is_terminal)
    caplog.set_level(logging.INFO, "reader_edge")
    load_engine(str(demo_folder), EngineConfig())
    (line,) = [record for record in caplog.records if record.getMessage().startswith("Measuring")]
    assert (line.name, line.levelno) == ("reader_edge.measuring", level)
