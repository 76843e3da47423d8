"""An export that was killed is continued: what it had done is not done again, and the package is the same."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_export import ExportOptions, export_model, package_export
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.checks.package_check import PackageCheck
from reader_edge_export.journal import JOURNAL_NAME, MOMENTS_NAME, TABLE_NAME, WORK_NAME, Journal
from reader_edge_export.package import package_folder
from reader_edge_export.package_export import PackageExport
from reader_edge_export.quantize import sensitive
from reader_edge_export.quantize.compensation import Compensation
from reader_edge_export.sources.weights import Matrix
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import MANIFEST_NAME, SUCCESSORS_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.manifest_file import read_manifest
from tests.export.conftest import TinyModel

NUM_ROUNDED, NUM_MATRICES = 9, 15  # matrices of the same rows are rounded as one


@dataclass(frozen=True)
class Undisturbed:
    """An export that nothing stopped. left: its folder after each line of the journal, as a kill would leave it, and
    what kind of line that was."""

    source: Path
    options: ExportOptions
    package: dict[str, bytes]
    left: list[tuple[str, Path]]

    def leave(self, kind: str, number: int, out: Path) -> Path:
        """What a kill leaves beside `out` after so many lines of a kind."""
        found = [folder for each, folder in self.left if each == kind][number - 1]
        return Path(shutil.copytree(found, out.with_name(f".{out.name}.partial-{os.getppid()}-1")))

    def leave_rounded(self, num_rounded: int, out: Path) -> Path:
        """What a kill leaves after so many matrices were rounded, once calibration was complete."""
        return self.leave("matrix", num_rounded, out) if num_rounded else self.leave("calibration", 1, out)


@pytest.fixture(scope="module")
def exports(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Undisturbed]:
    """By precision."""
    source = tiny_model("qwen2")
    return {
        precision: undisturbed(source, ExportOptions(precision, check="none"), tmp_path_factory.mktemp("left"))
        for precision in ("int8", "int4")
    }


@pytest.fixture(scope="module")
def checked(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """With all checks."""
    return undisturbed(tiny_model("qwen2"), ExportOptions("int8"), tmp_path_factory.mktemp("left"))


def undisturbed(source: Path, options: ExportOptions, folder: Path) -> Undisturbed:
    left: list[tuple[str, Path]] = []
    write = Journal._write

    def copy(journal: Journal, value: dict[str, object]) -> None:
        write(journal, value)
        (partial,) = folder.glob(".out.partial-*")
        left.append((next(iter(value)), Path(shutil.copytree(partial, folder / str(len(left))))))

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
    export, messages = exports[precision], list[str]()
    export.leave_rounded(num_rounded, out)
    monkeypatch.setattr(package_export, "calibrate", None)  # calling it would fail
    export_model(export.source, out, export.options, on_message=messages.append)
    assert len(rounded) == NUM_ROUNDED - num_rounded
    num_matrices = {0: 0, 5: 10, NUM_ROUNDED: NUM_MATRICES}[num_rounded]
    assert messages == [f"Resuming an export that was stopped: its calibration, {num_matrices} of 15 matrices."]
    assert contents(out) == export.package


@pytest.mark.long
@pytest.mark.parametrize("num_noted", [1, 4, NUM_ROUNDED])
def test_a_choice_of_eight_bits_is_continued(
    num_noted: int, exports: dict[str, Undisturbed], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    loss = sensitive._loss

    def counted(group: Sequence[Matrix], calibration: Calibration) -> float:
        looked_at.append(1)
        return loss(group, calibration)

    exports["int4"].leave("note", num_noted, out)
    monkeypatch.setattr(sensitive, "_loss", counted)
    export_model(exports["int4"].source, out, exports["int4"].options)
    assert len(looked_at) == NUM_ROUNDED - num_noted
    assert contents(out) == exports["int4"].package


@pytest.mark.parametrize(("num_noted", "run"), [(1, ["successors"]), (2, [])])
def test_checks_that_a_killed_export_had_done_are_not_done_again(
    num_noted: int, run: list[str], checked: Undisturbed, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked.leave("note", num_noted, out)
    assert checks_run(checked, out, monkeypatch) == run
    assert contents(out) == checked.package


@pytest.mark.long
def test_checks_of_another_kind_are_done(checked: Undisturbed, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked.leave("note", 2, out)
    quick = replace(checked, options=replace(checked.options, check="quick"))
    assert checks_run(quick, out, monkeypatch) == ["quality"]
    manifest = read_manifest(out)
    assert manifest.is_measured
    assert SUCCESSORS_NAME not in manifest.files
    assert set(contents(out)) == {*manifest.files, MANIFEST_NAME}


@pytest.mark.long
def test_a_table_that_changed_is_made_again(checked: Undisturbed, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = checked.leave("note", 2, out)
    with (left / WORK_NAME / TABLE_NAME).open("r+b") as file:
        file.write(b"half")
    assert checks_run(checked, out, monkeypatch) == ["successors"]
    assert contents(out) == checked.package


@pytest.mark.parametrize("figures", [[1], {"tree_rows_equal": "1"}, {"tree_rows_equal": float("inf")}, None])
def test_impossible_figures_are_measured_again(
    figures: object, checked: Undisturbed, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checked.leave("note", 1, out) / WORK_NAME / JOURNAL_NAME
    *lines, last = path.read_bytes().splitlines(keepends=True)
    name, _ = json.loads(last)["note"]
    path.write_bytes(b"".join([*lines, json.dumps({"note": [name, figures]}).encode() + b"\n"]))
    assert checks_run(checked, out, monkeypatch) == ["quality", "successors"]
    assert contents(out) == checked.package


def checks_run(export: Undisturbed, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Export to its end, and tell which checks that takes."""
    run: list[str] = []
    for name in ("quality", "successors"):
        check = getattr(PackageCheck, name)

        def counted(*arguments: Any, name: str = name, check: Any = check, **named: Any) -> Any:
            run.append(name)
            return check(*arguments, **named)

        monkeypatch.setattr(PackageCheck, name, counted)
    export_model(export.source, out, export.options)
    return run


@pytest.mark.long
def test_a_byte_that_changed_ends_what_is_taken_over(int8: Undisturbed, out: Path, rounded: list[int]) -> None:
    left = int8.leave_rounded(5, out)
    with (left / WEIGHTS_NAME).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    export_model(int8.source, out, int8.options)
    assert len(rounded) == NUM_ROUNDED - 4
    assert contents(out) == int8.package


@pytest.mark.long
def test_moments_that_changed_are_counted_again(int8: Undisturbed, out: Path, rounded: list[int]) -> None:
    left = int8.leave_rounded(5, out)
    with (left / WORK_NAME / MOMENTS_NAME).open("r+b") as file:
        file.write(b"half")
    messages: list[str] = []
    export_model(int8.source, out, int8.options, on_message=messages.append)
    assert (messages, len(rounded)) == ([], NUM_ROUNDED)
    assert contents(out) == int8.package


@pytest.mark.long
def test_what_another_export_left_is_cleared(exports: dict[str, Undisturbed], out: Path, rounded: list[int]) -> None:
    exports["int4"].leave_rounded(5, out)
    messages: list[str] = []
    export_model(exports["int8"].source, out, exports["int8"].options, on_message=messages.append)
    assert (messages, len(rounded)) == ([], NUM_ROUNDED)
    assert contents(out) == exports["int8"].package


def test_an_error_leaves_nothing_behind(int8: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **named: object) -> None:
        raise ExportError("fails")

    int8.leave_rounded(5, tmp_path / "out")
    monkeypatch.setattr(package_export, "write_graph", fail)
    with pytest.raises(ExportError, match="fails"):
        export_model(int8.source, tmp_path / "out", int8.options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_kill_once_the_manifest_is_written_leaves_all(
    checked: Undisturbed, out: Path, rounded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = killed_at(package_folder, "_put_in_place", checked, out)
    assert (killed / MANIFEST_NAME).is_file()
    rounded.clear()
    assert checks_run(checked, out, monkeypatch) == []
    assert rounded == []
    assert contents(out) == checked.package


@pytest.mark.long
def test_a_kill_during_the_checks_leaves_all_matrices(int8: Undisturbed, out: Path, rounded: list[int]) -> None:
    killed_at(PackageExport, "_checked", replace(int8, options=replace(int8.options, check="quick")), out)
    rounded.clear()
    export_model(int8.source, out, int8.options)
    assert rounded == []
    assert contents(out) == int8.package


def killed_at(owner: object, name: str, export: Undisturbed, out: Path) -> Path:
    """What an export leaves that is killed when it calls `name`."""

    class Killed(BaseException):
        """In the place of a signal that nothing catches."""

    def die(*_: object) -> None:
        (partial,) = out.parent.glob(".out.partial-*")
        shutil.copytree(partial, out.with_name("copy"))
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            export_model(export.source, out, export.options)
    return out.with_name("copy").rename(out.with_name(f".out.partial-{os.getppid()}-1"))
