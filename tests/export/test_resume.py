"""An export that was killed is gone on with: what it had done is not done again, and the package is the same."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_export import ExportOptions, export_model, package_export
from reader_edge_export.journal import MOMENTS_NAME, WORK_NAME, Journal
from reader_edge_export.package_export import PackageExport
from reader_edge_export.quantize.compensation import Compensation
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import WEIGHTS_NAME

TinyModel = Callable[[str], Path]
NUM_ROUNDED, NUM_MATRICES = 9, 15  # matrices of the same rows are rounded as one


@dataclass(frozen=True)
class Undisturbed:
    """An export that nothing stopped. left: its folder after each line of the journal, as a kill would leave it."""

    source: Path
    options: ExportOptions
    package: dict[str, bytes]
    left: list[Path]

    def leave(self, num_lines: int, out: Path) -> Path:
        """What a kill leaves beside `out` after so many lines."""
        return Path(shutil.copytree(self.left[num_lines - 1], out.with_name(f".{out.name}.partial-{os.getppid()}-1")))


@pytest.fixture(scope="module")
def exports(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Undisturbed]:
    """By precision."""
    source = tiny_model("qwen2")
    return {
        precision: undisturbed(source, precision, tmp_path_factory.mktemp("left")) for precision in ("int8", "int4")
    }


def undisturbed(source: Path, precision: str, folder: Path) -> Undisturbed:
    left: list[Path] = []
    write = Journal._write

    def copy(journal: Journal, value: object) -> None:
        write(journal, value)
        (partial,) = folder.glob(".out.partial-*")
        left.append(Path(shutil.copytree(partial, folder / str(len(left)))))

    options = ExportOptions(precision, check="none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_write", copy)
        export_model(source, folder / "out", options)
    return Undisturbed(source, options, contents(folder / "out"), left)


@pytest.fixture
def int8(exports: dict[str, Undisturbed]) -> Undisturbed:
    return exports["int8"]


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an element for each matrix that was rounded."""
    calls: list[int] = []
    begin = Compensation.__init__

    def counted(*arguments: Any) -> None:
        calls.append(1)
        begin(*arguments)

    monkeypatch.setattr(Compensation, "__init__", counted)
    return calls


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where a package goes, and nothing else is afterwards."""
    yield tmp_path / "out"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("num_rounded", [0, 5, NUM_ROUNDED])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_what_a_killed_export_had_done_is_not_done_again(
    precision: str,
    num_rounded: int,
    exports: dict[str, Undisturbed],
    out: Path,
    rounded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    export, told = exports[precision], list[str]()
    export.leave(2 + num_rounded, out)
    monkeypatch.setattr(package_export, "calibrate", None)  # calling it would fail
    export_model(export.source, out, export.options, tell=told.append)
    assert len(rounded) == NUM_ROUNDED - num_rounded
    num_matrices = {0: 0, 5: 10, NUM_ROUNDED: NUM_MATRICES}[num_rounded]
    assert told == [f"Going on with what an export that was stopped left: {num_matrices} of 15 matrices."]
    assert contents(out) == export.package


def test_a_byte_that_changed_ends_what_is_taken_over(int8: Undisturbed, out: Path, rounded: list[int]) -> None:
    left = int8.leave(2 + 5, out)
    with (left / WEIGHTS_NAME).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    export_model(int8.source, out, int8.options)
    assert len(rounded) == NUM_ROUNDED - 4
    assert contents(out) == int8.package


def test_moments_that_changed_are_counted_anew(int8: Undisturbed, out: Path, rounded: list[int]) -> None:
    left = int8.leave(2 + 5, out)
    with (left / WORK_NAME / MOMENTS_NAME).open("r+b") as file:
        file.write(b"half")
    told: list[str] = []
    export_model(int8.source, out, int8.options, tell=told.append)
    assert (told, len(rounded)) == ([], NUM_ROUNDED)
    assert contents(out) == int8.package


def test_what_another_export_left_is_cleared(exports: dict[str, Undisturbed], out: Path, rounded: list[int]) -> None:
    exports["int4"].leave(2 + 5, out)
    told: list[str] = []
    export_model(exports["int8"].source, out, exports["int8"].options, tell=told.append)
    assert (told, len(rounded)) == ([], NUM_ROUNDED)
    assert contents(out) == exports["int8"].package


def test_an_error_leaves_nothing_of_what_it_went_on_with(
    int8: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ExportError("fails")

    int8.leave(2 + 5, tmp_path / "out")
    monkeypatch.setattr(package_export, "write_graph", fail)
    with pytest.raises(ExportError, match="fails"):
        export_model(int8.source, tmp_path / "out", int8.options)
    assert list(tmp_path.iterdir()) == []


def test_a_kill_amid_the_checks_leaves_all_matrices(
    int8: Undisturbed, out: Path, rounded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """In the place of a signal that nothing catches."""

    def die(export: PackageExport, *_: object) -> None:
        shutil.copytree(export._folder, out.with_name("copy"))
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackageExport, "_checked", die)
        with pytest.raises(Killed):
            export_model(int8.source, out, replace(int8.options, check="quick"))
    out.with_name("copy").rename(out.with_name(f".out.partial-{os.getppid()}-1"))
    rounded.clear()
    export_model(int8.source, out, int8.options)
    assert rounded == []
    assert contents(out) == int8.package
