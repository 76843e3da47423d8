"""Which modules run on which machine, and what is said where none do."""

import json
from pathlib import Path

import pytest

from reader_edge.commands.export import export
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.iree import open_iree, target_machine, wheel
from reader_edge_runtime.execution.iree.module_index import INDEX_NAME
from reader_edge_runtime.execution.iree.target_machine import TARGETS, targets_here
from reader_edge_runtime.package.model_package import ModelPackage
from tests.runtime.execution.iree.test_module_index import index_of, make

V3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", V4, ["x86-64-v4", "x86-64-v3"]),
        ("AMD64", V3, ["x86-64-v3"]),
        ("x86_64", V3 - {"fma"}, []),
        ("arm64", set(), ["aarch64"]),
        ("aarch64", set(), ["aarch64"]),
        ("riscv64", set(), []),
    ],
)
def test_a_machine_runs_what_its_processor_has(
    machine: str, flags: set[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(machine, flags, monkeypatch)
    assert [target.name for target in targets_here()] == expected


@pytest.mark.parametrize(
    ("machine", "remedy"), [("aarch64", "export it with --target aarch64"), ("riscv64", "use --provider cpu")]
)
def test_modules_of_another_machine_are_refused_without_the_compiler(
    machine: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(machine, set(), monkeypatch)
    monkeypatch.setattr(open_iree, "compiler_version", lambda: None)
    (tmp_path / INDEX_NAME).write_bytes(index_of(make()).encoded())
    with pytest.raises(ProviderError, match=f"compiled for x86-64-v3, which this machine .{machine}. is not: {remedy}"):
        open_iree.open_iree(ModelPackage(tmp_path, make()), 1)


def test_the_command_line_knows_the_same_targets() -> None:
    choices = next(option.type for option in export.params if option.name == "target")
    assert json.loads(json.dumps(choices.to_info_dict()))["choices"] == list(TARGETS)


def test_what_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "runtime_version", lambda: None)
    assert wheel.iree_obstacle() == "IREE's runtime is missing: pip install 'reader-edge[iree]'."
    assert wheel.compiler_obstacle() == (
        "IREE's compiler or runtime is missing: pip install 'reader-edge[iree-export]'."
    )


def play(machine: str, flags: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(target_machine, "processor_flags", lambda: flags)
