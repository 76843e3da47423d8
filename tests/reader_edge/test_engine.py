"""`Engine.load` takes whatever names a model, as the command line does, and tells what it does for how long."""

import asyncio
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import reader_edge
import reader_edge_runtime
from reader_edge import AsyncEngine, Engine, EngineConfig, ServingConfig
from reader_edge.models.exported import _export_seconds
from reader_edge.models.model_source import load_engine
from reader_edge.terminal.console import stderr_console, work_progress
from reader_edge_export import libraries, pipeline
from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_runtime.errors import CatalogueError, ClosedError, ConfigError, InstallationError, PackageError
from tests.reader_edge.package_copy import PackageCopy

QUICK = EngineConfig(is_calibrated=False, is_probed=False, threads=1)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, demo_folder: Path) -> list[Path]:
    """What was exported; each became a copy of the demo package."""
    sources: list[Path] = []

    def export_model(
        source: Path,
        out: Path,
        options: ExportOptions,
        on_phase: Callable[[str], None],
        name: str | None,
        on_message: Callable[[str], None],
        on_share: Callable[[float, float], None],
    ) -> ExportReport:
        sources.append(source)
        on_phase("rounding")
        on_share(1.6, 3.0)
        PackageCopy(demo_folder, out)
        return ExportReport(out, 1, options.precision, options.attention, {}, {})

    monkeypatch.setattr(pipeline, "export_model", export_model)
    return sources


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def answers(engine: reader_edge_runtime.Engine) -> None:
    with engine:
        assert isinstance(engine, Engine)
        assert engine.generate("# tar", max_tokens=2).token_ids


def test_a_file_is_exported_once_with_progress(
    gguf: Path, exported: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    progress: list[tuple[int, int]] = []
    answers(Engine.load(gguf, QUICK, on_progress=lambda done, total: progress.append((done, total))))
    assert progress[0] == (2, 3)
    assert progress[-1][0] == progress[-1][1] > 1_000_000  # bytes of the package, checked
    assert f"Exporting {gguf} takes about 20 s, once." in capsys.readouterr().err
    answers(Engine.load(str(gguf), QUICK))
    assert exported == [gguf]
    assert "Exporting" not in capsys.readouterr().err


def test_a_name_a_folder_a_package_and_nothing_are_models(
    tmp_path: Path, exported: list[Path], demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("reader_edge.models.model_source.pulled", {"owner/name": folder}.__getitem__)
    for model in (folder, "owner/name", demo_folder, None):
        answers(Engine.load(model, QUICK))
    assert exported == [folder, folder]  # each under its own name
    monkeypatch.setenv("READER_EDGE_MODEL", os.fspath(folder))
    answers(Engine.load(config=QUICK))
    assert len(exported) == 2


def test_the_command_line_loads_by_the_same_door(gguf: Path, exported: list[Path]) -> None:
    answers(load_engine(str(gguf), QUICK))
    answers(Engine.load(gguf, QUICK))
    assert exported == [gguf]


def test_an_engine_for_event_loops_is_loaded_and_closed_as_one(gguf: Path, exported: list[Path]) -> None:
    async def ask() -> AsyncEngine:
        async with AsyncEngine.load(gguf, QUICK, serving=ServingConfig(max_waiting=2)) as engine:
            assert (await engine.generate("# tar", max_tokens=2)).token_ids
        return engine

    engine = asyncio.run(ask())
    with pytest.raises(ClosedError):
        _ = engine.engine.decoder
    assert exported == [gguf]


def test_an_engine_that_was_given_stays_open(demo_folder: Path) -> None:
    with Engine.load(demo_folder, QUICK) as engine:
        asyncio.run(AsyncEngine(engine).close())
        assert engine.generate("# tar", max_tokens=2).token_ids


def test_without_what_exports_it_is_one_sentence(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_is_installed", lambda name: name != "torch")
    sentence = r"^Exporting needs torch, which is missing: pip install 'reader-edge\[export\]'\.$"
    for load in (Engine.load, AsyncEngine.load):
        with pytest.raises(InstallationError, match=sentence):
            load(gguf, QUICK)
    with pytest.raises(InstallationError, match=sentence):
        Engine.load("owner/nothing-here", QUICK)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"model": 3}, ConfigError, "model is 3, which can be no path"),
        ({"model": ""}, PackageError, "The model's name is empty"),
        ({"model": "no such model"}, PackageError, "There is nothing at 'no such model'"),
        ({"config": 3}, ConfigError, "config is 3, but must be an EngineConfig"),
        ({"sources": 3}, ConfigError, "sources is 3, but must be a DraftSources"),
        ({"draft": 3}, ConfigError, "draft is 3, but must be a DraftConfig"),
        ({"on_progress": 3}, ConfigError, "on_progress is 3, but must be a function of two numbers"),
        ({"on_calibration": 3}, ConfigError, "on_calibration is 3, but must be a function of two numbers"),
    ],
)
def test_what_is_no_model_or_option_is_one_sentence(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Engine.load(**given)


def test_more_weights_take_longer(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    os.truncate(tmp_path / "model.safetensors", 1_000_000_000)
    assert _export_seconds(tmp_path) == 145
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    os.truncate(tmp_path / "model.gguf", 5_000_000_000)
    assert _export_seconds(tmp_path / "model.gguf") == 80


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_has_bars_or_else_lines(has_widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: shown.append(text))
    monkeypatch.setattr("reader_edge.terminal.console.find_spec", lambda name: has_widgets or None)
    started: list[object] = []
    monkeypatch.setattr("rich.live.Live.start", lambda live, refresh=False: started.append(live))
    assert isinstance(stderr_console(), Console)
    with work_progress("Exporting") as work:
        work.on_phase("rounding")
        work.on_progress(1, 2)
    assert bool(started) is has_widgets
    assert any("Exporting: rounding" in text for text in shown) is not has_widgets


def test_a_missing_model_is_one_sentence_without_what_libraries_met(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        try:
            raise OSError("no network")
        except OSError as error:
            raise CatalogueError("The hub does not answer.") from error

    monkeypatch.setattr("reader_edge.engine.loaded", fail)
    with pytest.raises(CatalogueError) as refused:
        Engine.load("smollm2:135m")
    shown = "".join(traceback.format_exception(refused.value))
    assert "The hub does not answer." in shown
    assert "OSError: no network" not in shown


def test_no_library_warns_of_a_bar_that_it_does_not_draw(monkeypatch: pytest.MonkeyPatch, demo_folder: Path) -> None:
    def warn(*_: object) -> None:
        warnings.warn("IProgress not found. Please update jupyter and ipywidgets.", stacklevel=1)

    monkeypatch.setattr("reader_edge.engine.loaded", warn)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Engine.load(demo_folder)
    assert not warned


def test_both_engines_are_those_of_the_face() -> None:
    assert reader_edge.Engine is Engine
    assert issubclass(Engine, reader_edge_runtime.Engine)
    assert issubclass(reader_edge.AsyncEngine, reader_edge_runtime.AsyncEngine)
