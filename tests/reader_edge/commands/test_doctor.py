"""`reader-edge doctor`: what it prints, and by what it ends."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.commands import doctor as doctor_command
from reader_edge.models.exported import ModelSource, package_of
from reader_edge.terminal.doctor_report import without_folders
from reader_edge_runtime.doctor import examine
from reader_edge_runtime.doctor.check_result import CheckResult, Severity
from reader_edge_runtime.doctor.environment import Environment
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from reader_edge_runtime.package.pipeline_file import write_pipeline
from tests.reader_edge.package_copy import PackageCopy
from tests.stages_here import free_address


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> list[CheckResult]:
    """The described machine, which a test may add to: this one may be busy. Time is enough."""
    findings = [CheckResult("cores", Severity.WELL, "All cores.")]
    monkeypatch.setattr(examine, "examine_machine", lambda *_: list(findings))
    monkeypatch.setattr(doctor_command, "_MAX_S", 120.0)
    return findings


@pytest.mark.parametrize(
    ("severity", "code", "last"),
    [
        (Severity.NOTE, 0, "All is well."),
        (Severity.SLOWER, 1, "It works, but slower than it could."),
        (Severity.BROKEN, 2, "It does not work as it is."),
    ],
)
def test_the_worst_finding_is_the_exit_code(
    severity: Severity,
    code: int,
    last: str,
    runner: CliRunner,
    sound: list[CheckResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examine, "examine_package", lambda *_: [])
    sound.append(CheckResult("fault", severity, "Found\x1b[2J.", "Do this."))
    result = runner.invoke(main, ["doctor"])
    assert result.exit_code == code
    lines = result.stdout.splitlines()
    assert lines == ["well    cores: All cores.", rf"{severity:<7} fault: Found\x1b[2J. Do this.", last]
    assert result.stderr == ""


def test_json_names_faults_and_no_folders(runner: CliRunner, package: PackageCopy, sound: list[CheckResult]) -> None:
    (package.folder / "model.onnx.data").write_bytes(b"short")
    result = runner.invoke(main, ["doctor", str(package.folder), "--json"])
    assert result.exit_code == 2
    assert str(package.folder.parent) not in result.stdout
    report = json.loads(result.stdout)
    assert report["verdict"] == "broken"
    (found,) = [each for each in report["findings"] if each["check"] == "package"]
    assert found["finding"] == "'model.onnx.data' has 5 bytes instead of 8349952."
    assert found["remedy"] == "Export or copy the package again."


@pytest.mark.parametrize("name", ["it's/my pkg", "two words/my pkg"])
@pytest.mark.parametrize("is_relative", [True, False])
def test_json_names_no_folder_of_a_package_whatever_its_path_holds(
    name: str,
    is_relative: bool,
    runner: CliRunner,
    package: PackageCopy,
    sound: list[CheckResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(package.folder, tmp_path / "elsewhere" / name)
    (folder / "model.onnx").write_bytes(b"short")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("READER_EDGE_MODEL", str(folder.relative_to(tmp_path) if is_relative else folder))
    result = runner.invoke(main, ["doctor", "--json"])
    assert json.loads(result.stdout)["verdict"] == "broken"
    assert "'model.onnx'" in result.stdout
    for part in ("elsewhere", Path(name).parent.name):
        assert part not in result.stdout


def test_a_path_that_no_system_has_is_a_finding(runner: CliRunner, sound: list[CheckResult]) -> None:
    result = runner.invoke(main, ["doctor", "--json", "/" + "x" * 5000])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["findings"][-1]["check"] == "model"


def test_a_model_that_is_not_here_does_not_work(runner: CliRunner, sound: list[CheckResult]) -> None:
    result = runner.invoke(main, ["doctor", "smollm2:135m"])
    assert result.exit_code == 2
    assert "broken  model: 'smollm2:135m' is not here. `reader-edge pull smollm2:135m` fetches it." in result.stdout


def test_until_a_model_is_exported_the_demo_is_looked_at(
    runner: CliRunner, tmp_path: Path, sound: list[CheckResult], monkeypatch: pytest.MonkeyPatch, demo_folder: Path
) -> None:
    looked_at = []

    def examine_package(folder: Path, environment: Environment, ends_at: float) -> list[CheckResult]:
        looked_at.append(folder)
        return []

    monkeypatch.setattr(examine, "examine_package", examine_package)
    (tmp_path / "config.json").write_text("{}")
    result = runner.invoke(main, ["doctor", str(tmp_path)])
    assert result.exit_code == 0
    assert re.search("note    model: .* is not exported yet; the bundled demo", result.stdout)
    assert looked_at == [demo_folder]
    monkeypatch.setattr("reader_edge.models.store.cache_folder", lambda: tmp_path / "cache")
    (package := package_of(ModelSource(tmp_path))).mkdir(parents=True)
    (package / MANIFEST_NAME).touch()
    assert "exported" not in runner.invoke(main, ["doctor", str(tmp_path)]).stdout
    assert looked_at == [demo_folder, package]


def test_where_a_provider_fails_the_doctor_is_named(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run", "--provider", "cuda", "-p", "x"])
    assert result.exit_code == 1
    assert result.stderr.endswith(" `reader-edge doctor MODEL` says more.\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'/home/a b/model.onnx' is no model", "'model.onnx' is no model"),
        ("see /srv/models/x/model.onnx there", "see model.onnx there"),
        (r"'C:\Users\me\model.onnx' is none", "'model.onnx' is none"),
        ("not listed in /sys, and/or 3/4 MB", "not listed in /sys, and/or 3/4 MB"),
        ("write /sys/kernel/mm/x", "write /sys/kernel/mm/x"),
        ("wants OWNER/NAME", "wants OWNER/NAME"),
    ],
)
@pytest.mark.parametrize("home", ["/home/My Name", "/"])
def test_folders_are_left_out_for_others(text: str, shown: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path(home))
    assert without_folders(text) == shown


def test_a_home_with_spaces_in_its_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/My Name"))
    assert without_folders("no /home/My Name/models/m.onnx") == "no m.onnx"


def test_boxes_are_checked(
    runner: CliRunner, sound: list[CheckResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "examine_package", lambda *_: [])
    address = free_address()
    write_pipeline(tmp_path, [address])
    result = runner.invoke(main, ["doctor", str(tmp_path)])
    assert (result.exit_code, f"Stage 1 cannot be reached at {address}" in result.stdout) == (2, True), result.output
