"""Instruction sets side by side: who is compared, how each is held to its set, and how peers are compiled for it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.instruction_sets import LLAMA_CPP_FLAGS, SHAPE, converted_contenders, set_contenders
from benchmarks.pass_times import Effort, measure_passes
from benchmarks.prepare import install
from benchmarks.runtimes import Command
from reader_edge_runtime.execution.onnxruntime.native import instructions_here
from tests.runtime.execution.native_operator import needs_kernels


def test_all_share_the_models_that_are_converted_once(tmp_path: Path) -> None:
    contenders = set_contenders(tmp_path)
    assert len({each.name for each in contenders}) == len(contenders)
    models = {each.model(SHAPE) for each in converted_contenders(tmp_path)}
    assert {each.model(SHAPE) for each in contenders} == models


def test_a_peer_is_compiled_for_each_set_in_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, dict[str, str]]] = []

    def noted(command: Command, cache: Path, environment: dict[str, str]) -> None:
        folder = Path(command[-1] if command[1:3] == ["-m", "venv"] else Path(command[0]).parent.parent)
        folder.mkdir(parents=True, exist_ok=True)
        if "install" in command:
            ran.append((folder.name, environment))

    monkeypatch.setattr("benchmarks.prepare.run", noted)
    for contender in set_contenders(tmp_path):
        install(contender)
    compiled = {name: flags for name, flags in LLAMA_CPP_FLAGS.items() if flags is not None}
    assert {name: environment["CMAKE_ARGS"] for name, environment in ran} == {
        f"llama.cpp-{name}": flags for name, flags in compiled.items()
    }
    assert len(ran) == len(compiled)  # both precisions in one
    assert all(environment["PIP_NO_CACHE_DIR"] == "1" for _, environment in ran)


@needs_kernels
def test_reader_edge_is_held_to_a_set_and_one_that_is_not_here_is_told(tmp_path: Path, demo_folder: Path) -> None:
    last = instructions_here()[-1]
    contender = next(each for each in set_contenders(tmp_path) if each.name.startswith("reader-edge int8"))
    contender.converted("demo").parent.mkdir(parents=True)
    contender.converted("demo").symlink_to(demo_folder)
    wanted = [replace(contender, instructions=name) for name in (last, "sse9")]
    effort = Effort("demo", pasts=(24,), num_answers=1, num_passes=1, widths=(1, 3))
    held, missing = measure_passes(wanted, effort).values()
    assert held["versions"]["native kernels"] == last
    assert list(held["pasts"]["24"]["pass_s"]) == ["1", "3"]
    assert "sse9" in missing["error"]


def test_every_set_has_kernels_or_flags(tmp_path: Path) -> None:
    names: Sequence[str] = [each.name for each in set_contenders(tmp_path)]
    assert "reader-edge int8 amx" in names
    assert "llama.cpp q8_0 amx" not in names
