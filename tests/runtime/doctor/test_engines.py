"""Checks of engines, kernels, a package and its passes: each is reported before it begins, and none stops the next."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from reader_edge_runtime.doctor import check_result, engines, loading, passes
from reader_edge_runtime.doctor.check_result import CheckResult, Severity, StepsOutcome
from reader_edge_runtime.doctor.engines import check_kernels, check_memory, check_package, check_provider, steps
from reader_edge_runtime.doctor.loading import failed_loading, fatal_loading
from reader_edge_runtime.doctor.passes import (
    check_passes,
    copy_rate,
    cost_result,
    failed_opening,
    pass_result,
    placement_result,
    widths_result,
)
from reader_edge_runtime.errors import ConfigError, InstallationError, MemoryShortageError
from reader_edge_runtime.execution.onnxruntime.session import nodes_elsewhere
from reader_edge_runtime.execution.provider import Provider
from reader_edge_runtime.execution.providers import PROVIDERS, preferred
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.plug_ins import provider_names
from tests.reader_edge.package_copy import PackageCopy
from tests.runtime.doctor.test_machine import described, install, write


def failing(error: Exception) -> Iterator[CheckResult]:
    yield CheckResult("check", Severity.WELL, "So far.")
    raise error


def test_steps_come_before_their_findings(
    demo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_MAX_PASS_S", 0.0)
    engines.main(demo_folder, ["cuda", "kernels"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    begun = [line["step"] for line in lines if "step" in line]
    assert set(begun[:-3]) == {*provider_names()} - {"cuda"}
    assert begun[-3:] == ["package", "memory", "passes"]
    assert lines.index({"step": "memory"}) == [line.get("check") for line in lines].index("memory") - 1


@pytest.mark.parametrize(
    ("error", "found"),
    [(ConfigError("It is odd: do this."), "It is odd."), (ValueError("x"), "failed (ValueError: x).")],
)
def test_after_a_step_that_fails_comes_the_next(
    error: Exception, found: str, demo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"one": lambda: failing(error), "two": lambda: iter([CheckResult("two", Severity.WELL, "Well.")])}
    monkeypatch.setattr(engines, "steps", lambda *_: taken)
    engines.main(demo_folder, [])
    plan, *lines = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert plan == {"plan": "one, two"}
    assert [line.get("severity") for line in lines] == [None, "well", "broken", None, "well"]
    assert found in lines[2]["found"]


def test_what_loads_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    loading.main()
    assert (
        json.loads(capsys.readouterr().out.splitlines()[-1])["found"]
        == "numpy, tokenizers, onnxruntime, llvmlite load."
    )


def test_only_the_first_module_that_fails_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> object:
        if name in ("tokenizers", "onnxruntime"):
            raise ImportError(f"{name}.so: odd")
        return object()

    monkeypatch.setattr(loading, "import_module", import_module)
    loading.main()
    *steps, result = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [line["step"] for line in steps] == ["numpy", "tokenizers"]
    assert "cannot be loaded (ImportError: tokenizers.so: odd)." in result["found"]
    assert result["remedy"].startswith("pip install --force-reinstall --no-deps tokenizers==")


@pytest.mark.long
def test_a_pass_is_timed_beside_its_memory_unless_only_some_experts_are_read(demo_folder: Path) -> None:
    findings = {each.check: each for each in check_passes(ModelPackage.open(demo_folder), lambda *_: 20e9)}
    assert "move 20.0 GB/s when they copy memory." in findings["copy rate"].sentence
    assert findings["pass time"].severity == Severity.WELL
    package = ModelPackage.open(demo_folder)
    package.manifest = replace(package.manifest, num_experts=4)
    *_, result = check_passes(package, lambda *_: 20e9)
    assert re.fullmatch(r"A pass of one token takes [0-9.]+ ms\.", result.sentence)


@pytest.mark.parametrize("error", [MemoryShortageError("It is short."), InstallationError("It is missing.")])
def test_what_an_earlier_step_found_comes_once(
    error: Exception, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "open_target", Mock(side_effect=error))
    assert list(check_passes(ModelPackage.open(demo_folder), lambda *_: 20e9)) == []


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
    run = StepsOutcome()
    for printed in ('{"step": "cpu"}', line, '{"plan": "cpu, passes"}'):
        check_result._note(printed, run)
    assert (run.begun, run.planned, run.results) == (["cpu"], ["cpu", "passes"], [])


def test_a_finding_of_an_unknown_kind_is_passed_over() -> None:
    run = StepsOutcome()
    for severity in ("well", "odd"):
        line = {"check": "cpu", "severity": severity, "found": "It runs.", "remedy": ""}
        check_result._note(json.dumps(line), run)
    assert run.results == [CheckResult("cpu", Severity.WELL, "It runs.")]


OBSTACLE = "The library libcublas.so.13 is missing: pip install 'reader-edge[gpu]' brings it."


def provider(obstacle: str | None, is_installed: bool = False) -> Provider:
    return replace(PROVIDERS["cpu"], obstacle=lambda: obstacle, is_installed=lambda: is_installed)


def test_an_obstacle_is_a_fault_only_of_what_is_wanted() -> None:
    cases = [
        (provider(None, is_installed=True), True, Severity.WELL),
        (provider(OBSTACLE), False, Severity.NOTE),
        (provider(OBSTACLE), True, Severity.SLOWER),
        (provider(OBSTACLE, is_installed=True), False, Severity.SLOWER),
    ]
    for each, is_preferred, severity in cases:
        (found,) = check_provider("device", each, is_preferred)
        assert found.severity == severity
        assert found.remedy.startswith("If you want it: ") == (severity == Severity.NOTE)
    assert found.sentence == "The library libcublas.so.13 is missing."
    assert found.remedy == "pip install 'reader-edge[gpu]' brings it."


def test_a_package_is_of_the_first_provider_that_it_suits(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModelPackage.open(demo_folder)
    assert preferred(package) == "cpu"
    monkeypatch.setitem(PROVIDERS, "iree", replace(PROVIDERS["cpu"], suits=lambda package: True))
    assert preferred(package) == "cpu"  # which asks before those behind it
    monkeypatch.setitem(PROVIDERS, "cuda", replace(PROVIDERS["cuda"], suits=lambda package: True))
    assert preferred(package) == "cuda"


def test_every_registered_engine_is_checked_and_a_missing_package_stops_none(demo_folder: Path) -> None:
    broken = set(steps(demo_folder, None))
    assert set(provider_names()) < broken < set(steps(demo_folder, ModelPackage.open(demo_folder)))


def test_missing_kernels_and_lesser_ones_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "instructions_here", lambda: ["avx512-vnni", "avx2"])
    for used, severity in ((None, Severity.SLOWER), ("avx2", Severity.SLOWER), ("avx512-vnni", Severity.WELL)):
        monkeypatch.setattr(engines, "native_instructions", lambda used=used: used)
        (found,) = check_kernels()
        assert found.severity == severity
        assert (used or "plain operators") in found.sentence


def test_memory_is_compared_with_what_the_package_needs(demo_folder: Path) -> None:
    manifest = ModelPackage.open(demo_folder).manifest
    cases = {
        (10**7, 10**7): Severity.BROKEN,
        (10**9, 10**7): Severity.SLOWER,
        (76 * 10**6, 76 * 10**6): Severity.NOTE,
        (10**10, 10**10): Severity.WELL,
    }
    for (free, free_ram), severity in cases.items():
        (found,) = check_memory(manifest, free, free_ram)
        assert found.severity == severity, found
    assert list(check_memory(manifest, None, None)) == []


def test_failures_of_passes_keep_their_words_but_for_short_memory_and_versions() -> None:
    found = failed_opening(
        "ONNX Runtime cannot load 'g': Unsupported model IR version: 99, max supported IR version: 13"
    )
    assert found.sentence == "The package is in ONNX IR version 99, and this ONNX Runtime reads up to 13."
    assert found.remedy.startswith("pip install --upgrade 'reader-edge[cpu]'")
    found = failed_opening("ONNX Runtime failed in a pass (BFCArena: Failed to allocate): free some memory.")
    assert found.severity == Severity.BROKEN
    assert found.sentence.startswith("Memory was short")
    found = failed_opening("CUDA does not run 3 nodes of this graph (Loop a): export with --precision fp16.")
    assert (found.sentence[-15:], found.remedy) == ("graph (Loop a).", "Export with --precision fp16.")
    assert failed_opening("ONNX Runtime cannot load 'g': [1] : FAIL : odd").sentence.endswith("odd")


def test_nodes_of_another_provider_are_named_as_copies_where_there_are_sessions() -> None:
    nodes = [SimpleNamespace(op_type="TopK", name="best")]
    subgraphs = [SimpleNamespace(ep_name=name, get_nodes=lambda: nodes) for name in ("Web", "CPU")]
    session = SimpleNamespace(
        get_providers=lambda: ["Web", "CPU"], get_provider_graph_assignment_info=lambda: subgraphs
    )
    elsewhere = nodes_elsewhere(SimpleNamespace(session=session, provider="Web"))
    assert elsewhere == {"CPU": ["TopK best"]}
    found = placement_result("Web", elsewhere)
    assert found.severity == Severity.SLOWER
    assert found.sentence.startswith("Web leaves 1 nodes to CPU (TopK best)")
    assert nodes_elsewhere(SimpleNamespace(provider="Other")) is None
    assert placement_result("Other", None).severity == Severity.WELL


def test_widths_costs_and_passes_are_slow_only_where_they_should_not_be() -> None:
    report = WidthReport(16, 14, 1e-6)
    assert widths_result(report, is_exact=True).severity == Severity.SLOWER
    assert widths_result(report, is_exact=False).severity == Severity.NOTE
    assert widths_result(WidthReport(16, 16, 0.0, 32), is_exact=True).sentence.startswith("Passes of every width of up")
    assert "has not run yet" in widths_result(None, is_exact=True).sentence
    cost = PassCost(1, (64,), (1, 4, 8), np.array([[1e-3, 2e-3, 3e-3]]))
    assert cost_result(cost).sentence == "Passes of 1, 8 nodes were measured at 1.00, 3.00 ms."
    assert cost_result(replace(cost, spread=0.9)).severity == Severity.NOTE
    assert cost_result(None).severity == Severity.WELL
    weights, rate = 200 << 20, 20e9
    assert pass_result(0.012, weights, rate).severity == Severity.WELL
    slow = pass_result(0.1, weights, rate)
    assert slow.severity == Severity.SLOWER
    assert "takes 100.00 ms; memory, at 20.0 GB/s, gives its 210 MB of weights in 10.49 ms" in slow.sentence
    assert pass_result(0.1, 8 << 20, rate).severity == Severity.WELL, "caches hold so few"
    assert copy_rate(2, 0.0) > 0


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (
            "ImportError: DLL load failed while importing onnxruntime_pybind11_state",
            "Windows cannot load onnxruntime 1.20.0, most often for want of Microsoft's Visual C++ libraries.",
            "Install the Visual C++ Redistributable for x64, the latest.",
        ),
        (
            "ImportError: cannot enable executable stack as shared object requires",
            "onnxruntime 1.20.0 asks for an executable stack, which this system's C library refuses.",
            "pip install --upgrade onnxruntime",
        ),
        (
            "AttributeError: module 'onnxruntime' has no attribute 'InferenceSession'",
            "The module onnxruntime is a remnant of wheels that overwrote each other: it has no InferenceSession.",
            "pip uninstall every onnxruntime wheel, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'.",
        ),
        (
            "OSError: libz.so.1 is missing",
            "onnxruntime 1.20.0 cannot be loaded (OSError: libz.so.1 is missing).",
            "pip install --force-reinstall --no-deps onnxruntime==1.20.0",
        ),
    ],
    ids=["visual c++", "executable stack", "remnant", "other"],
)
def test_an_error_comes_with_its_remedy(error: str, found: str, remedy: str, tmp_path: Path) -> None:
    install(tmp_path / "site", "onnxruntime", "1.20.0")
    result = failed_loading("onnxruntime", error, described(tmp_path, search_path=(str(tmp_path / "site"),)))
    assert (result.severity, result.sentence, result.remedy) == (Severity.BROKEN, found, remedy)


def test_a_module_of_no_wheel_is_called_by_its_own_name(tmp_path: Path) -> None:
    result = failed_loading("tokenizers", "OSError: odd", described(tmp_path, search_path=(str(tmp_path),)))
    assert result.sentence == "tokenizers cannot be loaded (OSError: odd)."
    assert result.remedy == "pip install --force-reinstall --no-deps tokenizers"


def test_what_loads_kernels_is_wanted_only_where_no_wheel_brought_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "linked_library", lambda: tmp_path / "kernels.so")
    loading.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["found"] == "numpy, tokenizers, onnxruntime load."
    result = failed_loading("llvmlite.binding", "ImportError: none", described(tmp_path, search_path=(str(tmp_path),)))
    assert result.remedy == "pip install 'reader-edge[jit]': without it nothing is drafted."


@pytest.mark.parametrize(
    ("returncode", "files", "changes", "found"),
    [
        (-11, {}, {}, "Loading tokenizers ends the process (signal 11)."),
        (3, {}, {}, "Loading tokenizers ends the process (exit code 3)."),
        (-4, {"proc__cpuinfo": "model name : Old\nflags : fpu sse4_2 avx"}, {}, "(Old has no AVX2, FMA)"),
        (0xC000001D, {}, {"system": "Windows"}, "built for a newer processor than this one: loading it"),
        (-4, {"proc__cpuinfo": "Features : fp asimd"}, {"machine": "aarch64"}, "has no half precision, dot products)"),
        (-4, {"proc__cpuinfo": "flags : x"}, {"machine": "riscv64"}, "built for a newer processor than this one: load"),
    ],
)
def test_an_end_names_what_the_processor_lacks(
    returncode: int, files: dict[str, str], changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    write(tmp_path, **files)
    result = fatal_loading("tokenizers", returncode, described(tmp_path, search_path=(str(tmp_path),), **changes))
    assert (result.severity, found in result.sentence) == (Severity.BROKEN, True), result.sentence
