"""export_model from end to end: what it writes and replaces, and what libraries do on the way."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from optimum.exporters.tasks import TasksManager
from tokenizers import Tokenizer

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.architectures import SUPPORTED
from reader_edge_export.sources.find import find_source
from reader_edge_export.trace.tree_config import EXPORTER, TASK, TreeConfig
from reader_edge_runtime.errors import ExportError, InstallationError
from reader_edge_runtime.machine.processor import num_usable_cores
from reader_edge_runtime.package.manifest import GRAPH_NAME, LOWERING_PROPERTY, MANIFEST_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import Exported, TinyModel
from tests.tiny_models import MAX_CONTEXT, VOCAB_SIZE, build_tiny_model

FP32 = ExportOptions(precision="fp32")


def test_a_package_is_whole_and_says_what_it_is(exported: Exported, tiny_model: TinyModel) -> None:
    package = ModelPackage.open(exported("gemma2", "fp32", "exact"))
    package.check_files()
    manifest = package.manifest
    assert sorted(path.name for path in package.folder.iterdir()) == sorted([*manifest.files, MANIFEST_NAME])
    assert "chat_template.jinja" in manifest.files
    assert (manifest.architecture, manifest.precision, manifest.attention) == ("gemma2", "fp32", "exact")
    assert (manifest.num_heads, manifest.num_kv_heads, manifest.head_dim, manifest.num_layers) == (4, 2, 16, 2)
    assert (manifest.vocab_size, manifest.max_context, manifest.sliding_window) == (VOCAB_SIZE, MAX_CONTEXT, 8)
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((1,), 0)
    assert manifest.source_fingerprint == find_source(tiny_model("gemma2"), None).fingerprint()
    assert manifest.exported_with["torch"] == torch.__version__
    assert manifest.num_experts is None
    assert manifest.num_experts_per_token is None
    assert manifest.checks["tree_logit_error"] < 5e-6
    assert manifest.checks["greedy_tokens"] == 64
    assert manifest.checks["tree_rows_equal"] == 1


@pytest.mark.parametrize(
    ("model_type", "precision", "lowering"),
    [
        ("gemma2", "fp32", "fp32, exact attention, 4 heads"),
        ("gemma4_text-experts", "int8", "int8, exact attention, 4 heads"),
    ],
)
def test_a_graph_says_what_its_manifest_does(
    model_type: str, precision: str, lowering: str, exported: Exported
) -> None:
    package = ModelPackage.open(exported(model_type, precision, "exact"))
    model = onnx.load(package.folder / GRAPH_NAME, load_external_data=False)
    assert (
        {entry.key: entry.value for entry in model.metadata_props}[LOWERING_PROPERTY]
        == lowering
        == package.manifest.lowering_id
    )


def test_a_quantized_package_says_what_rounding_cost(exported: Exported) -> None:
    checks = ModelPackage.open(exported("llama", "int8", "exact")).manifest.checks
    assert checks["top1_agreement"] > 0.9
    assert 0 <= checks["mean_kl_nats"] < 0.01
    assert checks["mean_kl_nats"] < checks["p99_kl_nats"]
    assert checks["held_out_tokens"] == 100  # as many as `exported` asks for


def test_the_graph_passes_the_full_check_of_onnx(exported: Exported) -> None:
    for attention in ("exact", "fast", "portable"):
        onnx.checker.check_model(exported("llama", "fp32", attention, is_checked=False) / GRAPH_NAME, full_check=True)


def test_weights_beyond_two_gigabytes_take_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_ONNX_EXTERNAL_DATA", "1")  # what Optimum does with such a model
    source = build_tiny_model("llama", tmp_path / "source", head_dim=64)
    export_model(source, tmp_path / "out", FP32)
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.checks["tree_logit_error"] < 5e-6
    assert "work" not in {path.name for path in (tmp_path / "out").iterdir()}


def test_phases_are_announced_and_timed(source: Path, tmp_path: Path) -> None:
    phases: list[str] = []
    report = export_model(source, tmp_path / "out", FP32, phases.append)
    assert phases == list(report.phase_seconds)
    assert phases[0] == "checking the source"
    assert report.num_bytes == sum(
        path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name != MANIFEST_NAME
    )


@pytest.mark.parametrize("options", [ExportOptions("int4"), ExportOptions("fp16", "fast")])
def test_long_phases_tell_what_is_done_of_them(source: Path, tmp_path: Path, options: ExportOptions) -> None:
    shares: dict[str, list[float]] = {}
    phases: list[str] = []

    def on_share(done: float, total: float) -> None:
        shares.setdefault(phases[-1], []).append(done / total)

    export_model(source, tmp_path / "out", options, phases.append, on_share=on_share)
    checks = {"checking against the source", "asking for likely successors"}
    assert shares.keys() == checks | (set(phases) & {"calibrating", "rounding", "storing"})
    for phase, given in shares.items():
        assert given == sorted(given)
        assert 0 < given[0] < 1
        assert given[-1] == pytest.approx(1) if phase in checks else 0.5 < given[-1] <= 1


@pytest.fixture(scope="module")
def settled(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source with a generation config, and its package of a shorter context."""
    folder = tmp_path_factory.mktemp("settled")
    source = Path(shutil.copytree(tiny_model("llama"), folder / "source"))
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7], "bos_token_id": 2}))
    export_model(source, folder / "out", ExportOptions(precision="fp32", max_context=32, check="none"))
    return source, folder / "out"


def test_a_shorter_context_is_respected(settled: tuple[Path, Path]) -> None:
    assert ModelPackage.open(settled[1]).manifest.max_context == 32


def test_generation_config_names_the_end_tokens(settled: tuple[Path, Path]) -> None:
    manifest = ModelPackage.open(settled[1]).manifest
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((1, 7), 2)


def test_the_tokenizer_survives(settled: tuple[Path, Path]) -> None:
    before, after = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in settled)
    assert before.encode("the cat sat on the mat").ids == after.encode("the cat sat on the mat").ids


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
)
def test_scaled_rope_is_exported_up_to_the_context_limit(scaling: dict[str, object], tmp_path: Path) -> None:
    source = build_tiny_model("llama", tmp_path / "source", rope_scaling=scaling)
    export_model(source, tmp_path / "out", FP32)
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < 5e-6


@pytest.mark.long
def test_phi3_longrope_is_exported_up_to_the_switch(tmp_path: Path) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": 64, "sliding_window": None}
    source = build_tiny_model("phi3", tmp_path / "source", **changes)
    with pytest.raises(ExportError, match="--max-context 64"):
        export_model(source, tmp_path / "out", FP32)
    export_model(source, tmp_path / "out", ExportOptions(precision="fp32", max_context=64))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < 5e-6


def test_force_replaces_a_package(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST_NAME).write_text("old")
    (out / "old.txt").write_text("old")
    export_model(source, out, ExportOptions(precision="fp32", force=True, check="none"))
    ModelPackage.open(out).check_files()
    assert not (out / "old.txt").exists()
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]


def test_force_never_replaces_what_is_no_package(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="no model package"):
        export_model(source, tmp_path / "out", ExportOptions(precision="fp32", force=True))
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_without_the_extra_the_remedy_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.libraries.util.find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"pip install 'reader-edge\[export\]'"):
        export_model(source, tmp_path / "out")


def test_importing_the_exporter_is_cheap() -> None:
    script = (
        "import sys, reader_edge_export; assert not {'torch', 'transformers', 'onnx', 'optimum'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.parametrize(("chosen", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_pytorch_leave_the_cores_while_they_wait(chosen: str | None, policy: str) -> None:
    """OpenMP reads it once, when PyTorch is loaded."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_WAIT_POLICY": chosen or ""}
    if chosen is None:
        del environment["OMP_WAIT_POLICY"]
    script = (
        "import os, sys, reader_edge_export; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == policy


def test_transformers_is_quiet_though_it_sets_its_level_meanwhile() -> None:
    root, inner = logging.getLogger("transformers"), logging.getLogger("transformers.integrations.hub_kernels")
    rope = logging.getLogger("transformers.modeling_rope_utils")  # speaks of a class's own defaults
    level = root.level
    try:
        with quiet_libraries():
            root.setLevel(logging.WARNING)  # as its first import does
            assert not inner.isEnabledFor(logging.WARNING)
            assert not rope.isEnabledFor(logging.WARNING)
            assert inner.isEnabledFor(logging.ERROR)
        assert logging.getLogger("transformers.integrations").level == logging.NOTSET
    finally:
        root.setLevel(level)


@pytest.mark.parametrize(
    ("named", "is_reported"), [("", False), ("1", False), ("400", True), ("4,2", False), ("9" * 5000, False)]
)
def test_openmp_gets_no_more_threads_than_there_are_cores(named: str, is_reported: bool) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": named}
    script = "import os, reader_edge_export; print(os.environ['OMP_NUM_THREADS'])"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    usable = num_usable_cores()
    assert done.stdout.strip() == (str(usable) if is_reported else named)
    assert ("400 threads would wait for each other" in done.stderr) is is_reported


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_every_architecture_is_registered_with_optimum(model_type: str) -> None:
    constructor = TasksManager.get_exporter_config_constructor(
        EXPORTER, model_type=model_type, task=TASK, library_name="transformers"
    )
    assert constructor.func is TreeConfig


def test_optimum_has_no_onnx_configs_for_the_pinned_transformers() -> None:
    """If this fails, Optimum's own ONNX configs are there: consider them as the base of TreeConfig."""
    with pytest.raises(ImportError):
        import optimum.exporters.onnx.model_configs  # noqa: F401
