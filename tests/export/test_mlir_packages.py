"""Packages for IREE: MLIR and modules beside the graph, compared with ONNX Runtime before they serve."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("iree.runtime", reason="IREE's runtime is not installed: pip install 'reader-edge[iree]'")
pytest.importorskip("iree.compiler", reason="IREE's compiler is not installed: pip install 'reader-edge[iree-export]'")

from reader_edge_export.options import ExportOptions
from reader_edge_export.pipeline import export_model
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.iree import compilation, module_files, module_set
from reader_edge_runtime.execution.iree.module_check import ModuleCheck
from reader_edge_runtime.execution.iree.module_files import INDEX_NAME, WIDTHS, ModuleIndex, mlir_name, module_name
from reader_edge_runtime.execution.iree.target_machine import TARGETS, targets_here
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.export.conftest import TinyModel

if not targets_here():
    pytest.skip("this machine is no target of IREE's modules", allow_module_level=True)

_FORK = """
import gc, os, sys
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

if hasattr(os, "sched_setaffinity"):  # pytest's worker has one core
    os.sched_setaffinity(0, range(os.cpu_count()))
target = open_target(ModelPackage.open(sys.argv[1]), EngineConfig(provider="iree", threads=2))
cache = target.new_cache(1, 32)
target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]]))
child = os.fork()
if child == 0:
    for cache in (cache, target.new_cache(1, 32)):
        try:
            target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]]))
        except ProviderError as error:
            assert "load the model again here" in str(error)
    del target
    gc.collect()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
_ENDS_FIRST = """
import atexit, subprocess, sys, time
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.package.model_package import ModelPackage

class Noted(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        started.append(self.pid)

started, subprocess.Popen = [], Noted
atexit.register(time.sleep, 0.5)  # what would be printed of it is printed then
target = open_target(ModelPackage.open(sys.argv[1]), EngineConfig(provider="iree", threads=1))
target._runner.width_for(64)
while not started:
    time.sleep(0.01)
time.sleep(0.1)
print(*started)
"""
COMPILE_ASIDE = module_set.ModuleSet._compile_aside
IREE = EngineConfig(provider="iree", threads=1)
PROMPT = [5, 9, 13, 21, 34, 55, 89]
TREE = DraftTree([8, 9, 10, 11, 12, 40, 41, 42, 7, 6], [-1, 0, 0, 1, 2, 0, 5, 6, 7, 7], [""] * 10)


@pytest.fixture(scope="module")
def folder(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of windowed layers, not to be changed."""
    out = tmp_path_factory.mktemp("mlir") / "package"
    export_model(tiny_model("gemma2"), out, ExportOptions("fp32", "portable-exact", check="none", engine="iree"))
    return out


@pytest.fixture
def package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPackage:
    """A copy that a test may spoil, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module_set.ModuleSet, "_compile_aside", lambda self, width: None)
    return ModelPackage.open(shutil.copytree(folder, tmp_path / "package"))


def test_the_manifest_vouches_for_mlir_modules_and_index(package: ModelPackage) -> None:
    added = {INDEX_NAME, *map(mlir_name, WIDTHS), module_name(1), module_name(8)}
    assert added <= package.manifest.files.keys()
    package.check_files()


def test_they_compute_what_onnx_runtime_does_with_bits_that_no_width_changes(package: ModelPackage) -> None:
    target = open_target(package, IREE)
    expected = tree_logits(open_target(package, EngineConfig(provider="cpu", threads=1)))
    np.testing.assert_allclose(tree_logits(target), expected, atol=1e-5)
    assert probe_width(target).is_invariant


def test_missing_widths_are_compiled_and_kept(
    package: ModelPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_set.ModuleSet, "_compile_aside", COMPILE_ASIDE)
    modules = opened(package)
    assert modules.runner.width_for(3) == 8
    assert modules._thread is not None
    modules._thread.join()
    assert modules.runner.width_for(3) == 4
    assert len(list((tmp_path / "cache").rglob("*.vmfb"))) == 1
    monkeypatch.setattr(module_files, "compile_module", None)
    again = opened(package)
    assert again.runner.width_for(4) == 4
    assert again.runner.width_for(8) == 8


def test_without_the_compiler_other_modules_serve(package: ModelPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_set, "compiler_version", lambda: None)
    modules = opened(package)
    with pytest.warns(UserWarning, match=r"passes of 1, 8 nodes alone; pip install 'reader-edge\[iree-export\]'"):
        assert modules.runner.width_for(2) == 8
    assert modules.runner.width_for(20) == 8


def test_a_module_of_other_bits_is_not_used(package: ModelPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = opened(package)
    monkeypatch.setattr(ModuleCheck, "has_equal_bits", lambda *arguments: False)
    with pytest.warns(UserWarning, match=r"The module of 4 for .* is not used: its bits are not those"):
        COMPILE_ASIDE(modules, 4)
    assert modules.runner.width_for(4) == 8
    monkeypatch.setattr(module_set.ModuleSet, "_compile_aside", COMPILE_ASIDE)
    monkeypatch.setattr(module_files, "compile_module", None)
    again = opened(package)
    assert again.runner.width_for(4) == 8
    assert again._thread is None


def test_modules_that_compute_something_else_are_refused_by_name(package: ModelPackage) -> None:
    path = package.path(INDEX_NAME)
    fields = json.loads(path.read_bytes())
    first, second = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1))
    places = fields["parameters"]
    assert places[first][1] == places[second][1]
    places[first], places[second] = places[second], places[first]
    path.write_text(json.dumps(fields))
    with pytest.raises(ProviderError, match=r"The module of 1 for .* is wrong: its logits are .* from ONNX Runtime's"):
        open_target(package, IREE)


def test_modules_whose_rows_of_the_cache_are_others_are_refused(package: ModelPackage) -> None:
    """Nothing that one pass tells shows them."""
    path = package.path(INDEX_NAME)
    fields = json.loads(path.read_bytes())
    first, second = (fields["outputs"].index(name) for name in ("new_key.1", "new_value.1"))
    fields["outputs"][first], fields["outputs"][second] = "new_value.1", "new_key.1"
    path.write_text(json.dumps(fields))
    with pytest.raises(ProviderError, match=r"The module of 1 for .* is wrong: its rows of past_key.1 are not ONNX"):
        open_target(package, IREE)


def test_weights_that_are_too_short_or_missing_are_refused_in_the_words_of_iree(package: ModelPackage) -> None:
    path = package.path(INDEX_NAME)
    fields = json.loads(path.read_bytes())
    name = "model.layers.0.mlp.up_proj.weight"
    for places, reason in (
        (fields["parameters"] | {name: [0, 4]}, rf"parameter `{name}` range out of bounds"),
        ({}, "no parameter found"),
    ):
        path.write_text(json.dumps(fields | {"parameters": places}))
        with pytest.raises(ProviderError, match=rf"IREE cannot load 'iree-1.vmfb' \({reason}.*\): export again"):
            open_target(package, IREE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_lets_go_of_a_target_without_waiting_for_its_threads(package: ModelPackage) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    call = [sys.executable, "-c", _FORK, str(package.folder)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")  # neither process prints anything at its end


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_spoilt_modules_are_compiled_again(
    content: bytes, package: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    COMPILE_ASIDE(opened(package), 4)
    kept = opened(package)._files.kept(4)
    assert kept is not None
    whole = kept.read_bytes()
    kept.write_bytes(content)
    modules = opened(package)
    assert modules.runner.width_for(4) == 8
    COMPILE_ASIDE(modules, 4)
    assert modules.runner.width_for(4) == 4
    assert kept.read_bytes() == whole


def test_an_unwritable_cache_names_the_remedy(
    package: ModelPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = opened(package)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"vmfb' cannot be written \(.+\): set XDG_CACHE_HOME to a folder"):
        COMPILE_ASIDE(modules, 4)


@pytest.mark.skipif(os.name == "nt", reason="signal 0 asks nothing on Windows")
def test_a_process_that_ends_takes_its_compiler_along_without_a_word(package: ModelPackage) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    call = [sys.executable, "-c", _ENDS_FIRST, str(package.folder)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_a_file_that_is_no_module_is_refused(content: bytes, package: ModelPackage) -> None:
    package.path(module_name(8)).write_bytes(content)
    with pytest.raises(ProviderError, match=r"IREE cannot load 'iree-8.vmfb'"):
        open_target(package, IREE)


def test_what_the_compiler_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "iree-1.mlir").write_text("no such text")
    with pytest.raises(ProviderError, match=r"IREE cannot compile 'iree-1.mlir' for aarch64 \(.+\)\.$"):
        compilation.compile_module(tmp_path / "iree-1.mlir", TARGETS["aarch64"])


def test_a_package_for_another_machine_is_compiled_here_where_the_compiler_is(package: ModelPackage) -> None:
    path = package.path(INDEX_NAME)
    other = "aarch64" if targets_here()[0].name != "aarch64" else "x86-64-v3"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"target": other}))
    with pytest.warns(UserWarning, match=r"Compiling for .*, once"):
        target = open_target(package, IREE)
    expected = tree_logits(open_target(package, EngineConfig(provider="cpu", threads=1)))
    np.testing.assert_allclose(tree_logits(target), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"engine": "iree"}, r"engine 'iree' needs attention 'portable-exact', not 'exact'"),
        ({"engine": "tvm"}, r"engine is 'tvm', but must be"),
        ({"target": "aarch64"}, r"target 'aarch64' needs engine 'iree'"),
        ({"engine": "iree", "attention": "portable-exact", "target": "z80"}, r"target is 'z80', but must be one of"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        ExportOptions(**options)  # type: ignore[arg-type] # whatever their types


def opened(package: ModelPackage) -> module_set.ModuleSet:
    return module_set.ModuleSet(package, ModuleIndex.of(package), targets_here()[0], 1)


def tree_logits(target: Target) -> Float32Array:
    """Of the tree behind the prompt, those of all nodes (N, V)."""
    cache = target.new_cache(1, 32)
    target.forward(cache, Pass(0, [DraftTree.chain(PROMPT)], [[0]]))
    cache.commit(0, list(range(len(PROMPT))))
    wanted = Pass(0, [TREE], [list(range(len(TREE)))], wants_logits=True)
    logits: Float32Array = target.forward(cache, wanted).wanted_logits[0].copy()
    return logits
