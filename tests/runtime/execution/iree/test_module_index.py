"""What a package says of its modules is believed field by field; which modules run on which machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge.commands.export import export
from reader_edge_runtime.errors import PackageError, ProviderError
from reader_edge_runtime.execution.iree import open_iree, target_machine
from reader_edge_runtime.execution.iree.module_files import INDEX_NAME, ModuleIndex
from reader_edge_runtime.execution.iree.target_machine import TARGETS, TargetMachine, targets_here
from reader_edge_runtime.execution.onnxruntime.graph_contract import input_tensors, output_tensors
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, FileEntry, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest
from tests.wrong_fields import assert_each_is_named

ENTRY = FileEntry(100, "0" * 64)
FILES = {"model.onnx": ENTRY, "tokenizer.json": ENTRY, WEIGHTS_NAME: ENTRY, INDEX_NAME: ENTRY}


def make() -> Manifest:
    return replace(make_manifest(), attention="portable-exact", files=FILES)


def index_of(manifest: Manifest) -> ModuleIndex:
    inputs = (*input_tensors(manifest, 1, 1, 1, 1), *manifest.past_names())
    outputs = (*output_tensors(manifest, 1, 1), *manifest.present_names())
    return ModuleIndex("x86-64-v3", "3.13.0", inputs, outputs, {"weight": (64, 36)})


INDEX = json.loads(index_of(make()).encoded())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    index = index_of(make())
    (tmp_path / INDEX_NAME).write_bytes(index.encoded())
    assert ModuleIndex.of(ModelPackage(tmp_path, make())) == index


def test_an_index_larger_than_any_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / INDEX_NAME).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PackageError, match=r"has more than the 16777216 bytes that it may have: export the model"):
        ModuleIndex.of(ModelPackage(tmp_path, make()))


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (([], None), "use --provider cpu, or pip install 'reader-edge[iree-export]'"),
        (([TARGETS["x86-64-v3"]], None), "export it with --target x86-64-v3, or pip install"),
        (([TARGETS["x86-64-v3"]], "3.13.0"), None),
    ],
    ids=["none", "no compiler", "compiled here"],
)
def test_a_package_for_another_machine_is_compiled_here_or_refused(
    arguments: tuple[list[TargetMachine], str | None],
    remedy: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, version = arguments
    away = replace(TARGETS["x86-64-v4"], machine="z80")
    monkeypatch.setitem(TARGETS, away.name, away)
    monkeypatch.setattr(open_iree, "targets_here", lambda: here)
    monkeypatch.setattr(open_iree, "compiler_version", lambda: version)
    index = replace(index_of(make()), target=away.name)
    package = ModelPackage(tmp_path, make())
    if remedy is None:
        assert open_iree._target_for(package, index) == here[0]
        return
    with pytest.raises(ProviderError, match=r"is compiled for x86-64-v4, which this machine") as refused:
        open_iree._target_for(package, index)
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format_version", 2),
        ("target", "z80"),
        ("inputs", [*INDEX["inputs"], "input_ids"]),
        ("outputs", [*INDEX["outputs"], "logits"]),
        ("parameters", {"weight": [64, 37]}),
    ],
)
def test_what_no_export_writes_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps(INDEX | {field: value}))
    with pytest.raises(PackageError, match=rf"iree.json' .* unusable .*{field[:5]}.*export the model again"):
        ModuleIndex.of(ModelPackage(tmp_path, make()))


def test_every_field_is_named_where_it_is_wrong() -> None:
    assert_each_is_named(ModuleIndex, {name: value for name, value in INDEX.items() if name != "format_version"})


@pytest.mark.parametrize("change", [{"attention": "exact"}, {"kv_dtype": "float16"}])
def test_modules_of_packages_in_another_form_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_bytes(index_of(make()).encoded())
    with pytest.raises(PackageError, match=r"is unusable .* attention, .* cache"):
        ModuleIndex.of(ModelPackage(tmp_path, replace(make(), **change)))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_index_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_bytes(content)
    with pytest.raises(PackageError, match=r"unusable|is not valid JSON"):
        ModuleIndex.of(ModelPackage(tmp_path, make()))


@pytest.mark.parametrize("name", ["iree-1.mlir", "iree-64.vmfb"])
def test_what_is_read_whole_has_a_bound(name: str, tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps(INDEX))
    manifest = replace(make(), files=FILES | {name: FileEntry(1 << 40, "0" * 64)})
    with pytest.raises(PackageError, match=rf"is unusable \({name} is too large\)"):
        ModuleIndex.of(ModelPackage(tmp_path, manifest))


def test_a_package_without_mlir_is_refused_with_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"holds no MLIR: export it with --engine iree"):
        ModuleIndex.of(ModelPackage(tmp_path, replace(make(), files={})))


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
def test_machines_run_what_they_have(
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


def play(machine: str, flags: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(target_machine, "processor_flags", lambda: flags)
