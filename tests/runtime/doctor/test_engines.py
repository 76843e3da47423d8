"""The steps taken, in this process: each is told before it begins, and none keeps the next from being taken."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from reader_edge_runtime.doctor import engines, loading, passes, step_process
from reader_edge_runtime.doctor.check_result import CheckResult, Severity
from reader_edge_runtime.doctor.engines import check_package
from reader_edge_runtime.doctor.passes import check_passes
from reader_edge_runtime.doctor.step_process import StepsRun
from reader_edge_runtime.errors import ConfigError, InstallationError, MemoryShortageError
from reader_edge_runtime.execution.providers import PROVIDERS
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.package_copy import PackageCopy


def failing(error: Exception) -> Iterator[CheckResult]:
    yield CheckResult("check", Severity.WELL, "So far.")
    raise error


def test_steps_are_told_before_their_findings_and_left_out_if_asked(
    demo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_MAX_PASS_S", 0.0)
    engines.main(demo_folder, ["cuda", "kernels"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    begun = [line["step"] for line in lines if "step" in line]
    assert set(begun[:-3]) == {*PROVIDERS} - {"cuda"}
    assert begun[-3:] == ["package", "memory", "passes"]
    assert lines.index({"step": "memory"}) == [line.get("check") for line in lines].index("memory") - 1


@pytest.mark.parametrize(
    ("error", "found"),
    [(ConfigError("It is odd: do this."), "It is odd."), (ValueError("x"), "failed (ValueError: x).")],
)
def test_a_step_that_fails_is_told_and_the_next_one_taken(
    error: Exception, found: str, demo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"one": lambda: failing(error), "two": lambda: iter([CheckResult("two", Severity.WELL, "Well.")])}
    monkeypatch.setattr(engines, "steps", lambda *_: taken)
    engines.main(demo_folder, [])
    plan, *lines = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert plan == {"plan": "one, two"}
    assert [line.get("severity") for line in lines] == [None, "well", "broken", None, "well"]
    assert found in lines[2]["found"]


def test_what_loads_is_told_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    loading.main()
    assert (
        json.loads(capsys.readouterr().out.splitlines()[-1])["found"]
        == "numpy, llvmlite, tokenizers, onnxruntime load."
    )


def test_the_first_module_that_does_not_load_is_told_and_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> object:
        if name in ("tokenizers", "onnxruntime"):
            raise ImportError(f"{name}.so: odd")
        return object()

    monkeypatch.setattr(loading, "import_module", import_module)
    loading.main()
    *steps, told = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [line["step"] for line in steps] == ["numpy", "llvmlite.binding", "tokenizers"]
    assert "cannot be loaded (ImportError: tokenizers.so: odd)." in told["found"]
    assert told["remedy"].startswith("pip install --force-reinstall --no-deps tokenizers==")


def test_a_pass_of_the_demo_is_timed_beside_its_memory(demo_folder: Path) -> None:
    findings = {each.check: each for each in check_passes(ModelPackage.open(demo_folder), lambda *_: 20e9)}
    assert "move 20.0 GB/s when they copy memory." in findings["copy rate"].sentence
    assert findings["pass time"].severity == Severity.WELL


@pytest.mark.parametrize("error", [MemoryShortageError("It is short."), InstallationError("It is missing.")])
def test_what_an_earlier_step_told_is_not_told_again(
    error: Exception, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "open_target", Mock(side_effect=error))
    assert list(check_passes(ModelPackage.open(demo_folder), lambda *_: 20e9)) == []


def test_a_pass_of_some_experts_is_held_to_no_bound(demo_folder: Path) -> None:
    package = ModelPackage.open(demo_folder)
    package.manifest = replace(package.manifest, num_experts=4)
    *_, told = check_passes(package, lambda *_: 20e9)
    assert re.fullmatch(r"A pass of one token takes [0-9.]+ ms\.", told.sentence)


def test_a_graph_that_is_none_does_not_run(demo_folder: Path, tmp_path: Path) -> None:
    copy = PackageCopy(demo_folder, tmp_path / "package")
    copy.write_file("model.onnx", b"no graph")
    (found,) = check_passes(ModelPackage.open(copy.folder), lambda *_: 20e9)
    assert (found.severity, found.remedy) == (Severity.BROKEN, "Export or copy the package again.")


def test_large_files_are_not_read_whole(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MOST_HASHED", 0)
    first, versions = check_package(demo_folder)
    assert first.severity == Severity.NOTE
    assert "right sizes" in first.sentence
    assert versions.sentence == "Its graph is ONNX IR 11, opset 24."


@pytest.mark.parametrize("line", ["[1]", "{", "5", '{"step": 1, "more": 2}', '{"step": "cpu"}x', "[" * 50_000], ids=len)
def test_what_libraries_print_is_no_step(line: str) -> None:
    run = StepsRun()
    for told in ('{"step": "cpu"}', line, '{"plan": "cpu, passes"}'):
        step_process._note(told, run)
    assert (run.begun, run.planned, run.findings) == (["cpu"], ["cpu", "passes"], [])


def test_a_finding_of_an_unknown_kind_is_passed_over() -> None:
    run = StepsRun()
    for severity in ("well", "odd"):
        line = {"check": "cpu", "severity": severity, "found": "It runs.", "remedy": ""}
        step_process._note(json.dumps(line), run)
    assert run.findings == [CheckResult("cpu", Severity.WELL, "It runs.")]
