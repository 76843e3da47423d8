"""Examinations with processes of their own: whatever ends them is a finding, and none takes longer than it may."""

import os
import sys
import time
from pathlib import Path

import pytest

from reader_edge_runtime.doctor import examine
from reader_edge_runtime.doctor.check_result import CheckResult, Severity, StepsOutcome
from reader_edge_runtime.doctor.examine import examine_machine, examine_package
from reader_edge_runtime.execution.onnxruntime.native import native_library
from tests.reader_edge.package_copy import PackageCopy
from tests.runtime.doctor.test_machine import described, install, write

LONG_S = 120.0  # on a busy machine
_WITHOUT_SESSION = "__version__ = '1.31.1'"
_TRAP = """
import os, sys
def end(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo") or (event == "import" and arguments[0] == "torch"):
        os._exit(9)
sys.addaudithook(end)
"""
_ENDS = "import os, signal; os.kill(os.getpid(), signal.{})"


@pytest.mark.skipif(native_library() is None, reason="the native kernels were not built")
def test_an_instruction_set_that_is_none_is_named_once(demo_folder: Path, tmp_path: Path) -> None:
    environ = dict(os.environ) | {"READER_EDGE_INSTRUCTIONS": "none-such"}
    findings = examine_package(demo_folder, described(tmp_path, environ=environ), time.monotonic() + LONG_S)
    (broken,) = [finding for finding in findings if finding.severity == Severity.BROKEN]
    assert (broken.check, "'none-such'" in broken.sentence) == ("kernels", True)


@pytest.mark.parametrize(
    ("code", "found", "remedy"),
    [
        (_WITHOUT_SESSION, "is a remnant of wheels that overwrote each other", "pip uninstall every onnxruntime"),
        (
            _ENDS.format("SIGILL"),
            "built for a newer processor than this one (Old has no AVX, AVX2, FMA)",
            "an older wheel",
        ),
    ],
    ids=["remnant", "illegal instruction"],
)
def test_an_engine_that_cannot_be_loaded_is_one_finding(code: str, found: str, remedy: str, tmp_path: Path) -> None:
    path = install(tmp_path / "site", "onnxruntime", "1.20.0", code)
    write(tmp_path, proc__cpuinfo="model name : Old\nflags : fpu sse4_2")
    findings = examine_machine(described(tmp_path, search_path=path), time.monotonic() + LONG_S)
    (broken,) = [finding for finding in findings if finding.severity == Severity.BROKEN]
    assert found in broken.sentence
    assert remedy in broken.remedy


def test_what_takes_too_long_is_cut_off_with_a_note(tmp_path: Path) -> None:
    path = install(tmp_path / "site", "onnxruntime", "1.31.1", "import time; time.sleep(600)")
    start = time.monotonic()
    findings = examine_machine(described(tmp_path, search_path=path), start + 1)
    assert time.monotonic() - start < 60
    assert findings[-1].severity == Severity.NOTE
    assert "was cut off here" in findings[-1].sentence


def test_steps_that_were_not_reached_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = StepsOutcome(planned=["kernels", "cpu", "passes"], begun=["kernels"], returncode=None)
    monkeypatch.setattr(examine, "run_steps", lambda *_: run)
    (cut,) = examine_package(tmp_path, described(tmp_path), time.monotonic() + LONG_S)
    assert cut.check == "kernels"
    assert "Not looked at: cpu, passes." in cut.sentence


def test_after_a_step_that_ends_the_process_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well = CheckResult("cpu", Severity.WELL, "It runs.")
    runs = [StepsOutcome(begun=["cuda"], returncode=-11), StepsOutcome([well], ["cpu"])]
    left_out = []

    def run_steps(module: str, arguments: list[str], *_: object) -> StepsOutcome:
        left_out.append(arguments[1:])
        return runs.pop(0)

    monkeypatch.setattr(examine, "run_steps", run_steps)
    died, other = examine_package(tmp_path, described(tmp_path), time.monotonic() + LONG_S)
    assert (died.check, died.severity, other) == ("cuda", Severity.BROKEN, well)
    assert "(signal 11)" in died.sentence
    assert left_out == [[], ["cuda"]]


def test_a_process_that_ends_before_its_first_step_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "run_steps", lambda *_: StepsOutcome(returncode=1, stderr="no such module"))
    (found,) = examine_package(tmp_path, described(tmp_path), time.monotonic() + LONG_S)
    assert found.severity == Severity.BROKEN
    assert examine_machine(described(tmp_path), time.monotonic())[-1].sentence.endswith("(no such module).")


def test_a_python_that_cannot_be_started_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))  # as within another program
    found = examine_machine(described(tmp_path), time.monotonic() + 60)[-1]
    assert found.severity == Severity.BROKEN
    assert "Python cannot be started (No such file or directory)" in found.sentence


def test_a_sound_package_runs_on_the_cpu(demo_folder: Path, tmp_path: Path) -> None:
    findings = examine_package(demo_folder, described(tmp_path), time.monotonic() + LONG_S)
    by_check = {finding.check: finding for finding in findings}
    assert not [finding for finding in findings if finding.severity == Severity.BROKEN]
    assert {"cpu", "kernels", "package", "memory", "placement", "widths", "cost curve", "pass time"} <= set(by_check)
    assert "The whole graph runs on CPUExecutionProvider" in by_check["placement"].sentence


@pytest.mark.long
def test_no_network_is_used_and_no_torch_imported(demo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_TRAP)
    environment = described(tmp_path, search_path=(str(tmp_path / "site"), *described(tmp_path).search_path))
    findings = [
        *examine_machine(environment, time.monotonic() + LONG_S),
        *examine_package(demo_folder, environment, time.monotonic() + LONG_S),
    ]
    assert not [finding for finding in findings if finding.severity == Severity.BROKEN]


def test_a_package_newer_than_onnx_runtime_is_named_with_both_versions(demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    graph = (package.folder / "model.onnx").read_bytes()
    assert graph[:2] == b"\x08\x0b", "the graph does not begin with its IR version, 11"
    package.write_file("model.onnx", b"\x08\x63" + graph[2:])
    findings = examine_package(package.folder, described(tmp_path), time.monotonic() + LONG_S)
    (broken,) = [finding for finding in findings if finding.severity == Severity.BROKEN]
    assert "is in ONNX IR version 99, and this ONNX Runtime reads up to" in broken.sentence
    assert "export the model again" in broken.remedy


def test_a_spoilt_package_is_a_finding_in_its_own_words(demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    (package.folder / "model.onnx.data").write_bytes(b"short")
    findings = examine_package(package.folder, described(tmp_path), time.monotonic() + LONG_S)
    broken = next(finding for finding in findings if finding.check == "package")
    assert broken.severity == Severity.BROKEN
    assert "has 5 bytes instead of 8349952." in broken.sentence
