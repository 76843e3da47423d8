"""What is said of engines, kernels, memory and pass times: of described ones."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reader_edge_runtime.doctor import engines
from reader_edge_runtime.doctor.check_result import Severity
from reader_edge_runtime.doctor.engines import check_kernels, check_memory, check_provider, steps
from reader_edge_runtime.doctor.passes import (
    copy_rate,
    cost_result,
    failed_opening,
    pass_result,
    placement_result,
    widths_result,
)
from reader_edge_runtime.execution.onnxruntime.placement import nodes_elsewhere
from reader_edge_runtime.execution.provider import Provider
from reader_edge_runtime.execution.providers import PROVIDERS, preferred
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.model_package import ModelPackage

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
    monkeypatch.setitem(PROVIDERS, "tensorrt", replace(PROVIDERS["tensorrt"], suits=lambda package: True))
    assert preferred(package) == "cpu"  # which asks before those behind it
    monkeypatch.setitem(PROVIDERS, "cuda", replace(PROVIDERS["cuda"], suits=lambda package: True))
    assert preferred(package) == "cuda"


def test_every_registered_engine_is_asked_and_a_missing_package_stops_none(demo_folder: Path) -> None:
    assert set(PROVIDERS) < set(steps(demo_folder, None)) < set(steps(demo_folder, ModelPackage.open(demo_folder)))


def test_missing_kernels_and_lesser_ones_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "instructions_here", lambda: ["avx512-vnni", "avx2"])
    for used, severity in ((None, Severity.SLOWER), ("avx2", Severity.SLOWER), ("avx512-vnni", Severity.WELL)):
        monkeypatch.setattr(engines, "native_instructions", lambda used=used: used)
        (found,) = check_kernels()
        assert found.severity == severity
        assert (used or "plain operators") in found.sentence


def test_memory_is_told_against_what_the_package_needs(demo_folder: Path) -> None:
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


def test_an_allocation_that_fails_in_a_pass_is_short_memory() -> None:
    found = failed_opening("ONNX Runtime failed in a pass (BFCArena: Failed to allocate): free some memory.")
    assert found.severity == Severity.BROKEN
    assert found.sentence.startswith("Memory was short")


def test_a_graph_newer_than_the_wheel_is_told_with_both_versions() -> None:
    found = failed_opening(
        "ONNX Runtime cannot load 'g': Unsupported model IR version: 99, max supported IR version: 13"
    )
    assert found.sentence == "The package is in ONNX IR version 99, and this ONNX Runtime reads up to 13."
    assert found.remedy.startswith("pip install --upgrade 'reader-edge[cpu]'")


def test_other_failures_keep_their_words() -> None:
    found = failed_opening("CUDA does not run 3 nodes of this graph (Loop a): export with --precision fp16.")
    assert (found.sentence[-15:], found.remedy) == ("graph (Loop a).", "Export with --precision fp16.")
    assert failed_opening("ONNX Runtime cannot load 'g': [1] : FAIL : odd").sentence.endswith("odd")


def test_nodes_of_another_provider_are_named_as_copies() -> None:
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


def test_an_engine_without_sessions_has_no_placement_to_tell() -> None:
    assert nodes_elsewhere(SimpleNamespace(provider="Other")) is None
    assert placement_result("Other", None).severity == Severity.WELL


def test_bits_that_differ_are_slow_where_a_package_promises_them() -> None:
    report = WidthReport(16, 14, 1e-6)
    assert widths_result(report, is_exact=True).severity == Severity.SLOWER
    assert widths_result(report, is_exact=False).severity == Severity.NOTE
    assert widths_result(WidthReport(16, 16, 0.0, 32), is_exact=True).sentence.startswith("Passes of every width of up")
    assert "has not run yet" in widths_result(None, is_exact=True).sentence


def test_the_cost_curve_is_told_as_far_as_it_is_measured() -> None:
    cost = PassCost(1, (64,), (1, 4, 8), np.array([[1e-3, 2e-3, 3e-3]]))
    assert cost_result(cost).sentence == "Passes of 1, 8 nodes were measured at 1.00, 3.00 ms."
    assert cost_result(replace(cost, spread=0.9)).severity == Severity.NOTE
    assert cost_result(None).severity == Severity.WELL


def test_a_pass_far_above_the_bound_of_memory_is_slow() -> None:
    weights, rate = 200 << 20, 20e9
    assert pass_result(0.012, weights, rate).severity == Severity.WELL
    slow = pass_result(0.1, weights, rate)
    assert slow.severity == Severity.SLOWER
    assert "takes 100.00 ms; memory, at 20.0 GB/s, gives its 210 MB of weights in 10.49 ms" in slow.sentence
    assert pass_result(0.1, 8 << 20, rate).severity == Severity.WELL, "caches hold so few"


def test_memory_has_a_rate() -> None:
    assert copy_rate(2, 0.0) > 0
