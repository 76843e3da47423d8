"""export_model from end to end: what it writes, what it refuses, and that a failure leaves nothing behind."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from tokenizers import Tokenizer

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.source import find_source
from reader_edge_runtime.errors import (
    ConfigError,
    ExportError,
    InstallationError,
    ParityError,
    ReaderEdgeError,
    TokenizerError,
    UnsupportedArchitectureError,
)
from reader_edge_runtime.package import GRAPH_NAME, MANIFEST_NAME, ModelPackage
from tests.tiny_models import MAX_CONTEXT, VOCAB_SIZE, build_tiny_model

TinyModel = Callable[[str], Path]
Exported = Callable[[str, str, str], Path]
FP32 = ExportOptions(precision="fp32")


@pytest.fixture
def source(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A copy of the tiny llama that a test may spoil."""
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "source"))


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
    assert manifest.checks["tree_logit_error"] < 5e-6
    assert manifest.checks["greedy_tokens"] == 64
    assert manifest.checks["tree_rows_equal"] == 1


def test_a_quantized_package_says_what_rounding_cost(exported: Exported) -> None:
    checks = ModelPackage.open(exported("llama", "int8", "exact")).manifest.checks
    assert checks["top1_agreement"] > 0.9
    assert 0 <= checks["mean_kl_nats"] < 0.01
    assert checks["calibration_tokens"] > 500


def test_the_graph_passes_the_full_check_of_onnx(exported: Exported) -> None:
    for attention in ("exact", "fast", "portable"):
        onnx.checker.check_model(exported("llama", "fp32", attention) / GRAPH_NAME, full_check=True)


def test_weights_beyond_two_gigabytes_take_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_ONNX_EXTERNAL_DATA", "1")  # what Optimum does with such a model
    source = build_tiny_model("llama", tmp_path / "source", head_dim=64)
    export_model(source, tmp_path / "out", FP32)
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert manifest.checks["tree_logit_error"] < 5e-6
    assert "trace" not in {path.name for path in (tmp_path / "out").iterdir()}


def test_stages_are_announced_and_timed(source: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    report = export_model(source, tmp_path / "out", FP32, stages.append)
    assert stages == list(report.stage_seconds)
    assert stages[0] == "checking the source"
    assert report.num_bytes == sum(
        path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name != MANIFEST_NAME
    )


def test_a_shorter_context_is_respected(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "out", ExportOptions(precision="fp32", max_context=32))
    assert ModelPackage.open(tmp_path / "out").manifest.max_context == 32


def test_generation_config_names_the_end_tokens(source: Path, tmp_path: Path) -> None:
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7], "bos_token_id": 2}))
    export_model(source, tmp_path / "out", FP32)
    manifest = ModelPackage.open(tmp_path / "out").manifest
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((1, 7), 2)


def test_the_tokenizer_survives(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "out", FP32)
    before, after = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in (source, tmp_path / "out"))
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


def test_phi3_longrope_is_exported_up_to_the_switch(tmp_path: Path) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": 64, "sliding_window": None}
    source = build_tiny_model("phi3", tmp_path / "source", **changes)
    with pytest.raises(ExportError, match="--max-context 64"):
        export_model(source, tmp_path / "out", FP32)
    export_model(source, tmp_path / "out", ExportOptions(precision="fp32", max_context=64))
    assert ModelPackage.open(tmp_path / "out").manifest.checks["tree_logit_error"] < 5e-6


def test_an_unknown_architecture_is_refused_before_torch_is_imported(source: Path, tmp_path: Path) -> None:
    _change_config(source, model_type="mamba")
    script = (
        "import sys\n"
        "from reader_edge_export import export_model\n"
        "from reader_edge_runtime.errors import UnsupportedArchitectureError\n"
        "try:\n    export_model(sys.argv[1], sys.argv[2])\n"
        "except UnsupportedArchitectureError as error:\n    print(error)\n"
        "assert not {'torch', 'transformers', 'onnx'} & set(sys.modules), 'heavy'\n"
    )
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "'mamba' cannot be exported" in result.stdout
    assert "qwen3" in result.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_config": {}}, "text model"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a text generator"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'"),
    ],
)
def test_what_attention_cannot_express_is_refused(
    changes: dict[str, object], words: str, source: Path, tmp_path: Path
) -> None:
    _change_config(source, **changes)
    with pytest.raises(UnsupportedArchitectureError, match=words):
        export_model(source, tmp_path / "out", FP32)


def test_an_attention_with_sinks_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    forward = modeling_llama.LlamaAttention.forward

    def with_sinks(self: object, *args: object, **kwargs: object) -> object:
        return forward(self, *args, **kwargs, s_aux=torch.zeros(4))

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", with_sinks)
    with pytest.raises(UnsupportedArchitectureError, match="s_aux"):
        export_model(source, tmp_path / "out", FP32)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("missing", "error", "words"),
    [
        ("config.json", ExportError, "no config.json"),
        ("tokenizer.json", TokenizerError, "no tokenizer.json"),
        ("model.safetensors", ExportError, "no weights"),
    ],
)
def test_a_missing_file_is_named(
    missing: str, error: type[ReaderEdgeError], words: str, source: Path, tmp_path: Path
) -> None:
    (source / missing).unlink()
    with pytest.raises(error, match=words):
        export_model(source, tmp_path / "out", FP32)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="No model at"):
        export_model(tmp_path / "nowhere", tmp_path / "out", FP32)


def test_a_model_the_hub_cannot_give_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise LocalEntryNotFoundError("Cannot reach the hub.\nDetails follow.")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(ExportError, match=r"'nobody/nothing' here, .* Cannot reach the hub\.$"):
        export_model("nobody/nothing", tmp_path / "out", FP32)


def test_a_model_from_the_hub_keeps_its_name(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file: str(source / file))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: str(source))
    export_model("somebody/something", tmp_path / "out", FP32)
    assert ModelPackage.open(tmp_path / "out").manifest.source_name == "somebody/something"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match=r"no config\.json"):
        export_model(tmp_path / "empty", tmp_path / "out", FP32)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "llama"}'])
def test_a_broken_config_is_refused(content: str, source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text(content)
    with pytest.raises(ExportError, match=r"config\.json"):
        export_model(source, tmp_path / "out", FP32)


def test_pickled_weights_are_refused(source: Path, tmp_path: Path) -> None:
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(ExportError, match=r"pytorch_model\.bin, a pickle"):
        export_model(source, tmp_path / "out", FP32)


def test_broken_weights_are_refused(source: Path, tmp_path: Path) -> None:
    (source / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(ExportError, match="cannot be loaded"):
        export_model(source, tmp_path / "out", FP32)


def test_weights_that_lack_a_layer_are_refused(source: Path, tmp_path: Path) -> None:
    _change_config(source, num_hidden_layers=3, layer_types=None)
    with pytest.raises(ExportError, match=r"lack model\.layers\.2"):
        export_model(source, tmp_path / "out", FP32)


def test_a_broken_tokenizer_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be read"):
        export_model(source, tmp_path / "out", FP32)


def test_a_tokenizer_of_another_model_is_refused(source: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_tokens([f"extra{number}" for number in range(VOCAB_SIZE)])
    tokenizer.save(str(source / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=f"vocabulary ends at {VOCAB_SIZE - 1}"):
        export_model(source, tmp_path / "out", FP32)


def test_a_calibration_text_that_cannot_be_read_is_named(source: Path, tmp_path: Path) -> None:
    options = ExportOptions(calibration_text=tmp_path / "missing.txt")
    with pytest.raises(ExportError, match=r"missing\.txt"):
        export_model(source, tmp_path / "out", options)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp8"},
        {"attention": "slow"},
        {"max_context": 0},
        {"precision": "int4", "attention": "portable"},
        {"precision": "fp16"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ExportOptions(**options)  # type: ignore[arg-type]


def test_an_existing_folder_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    stages: list[str] = []
    with pytest.raises(ExportError, match="exists already"):
        export_model(source, tmp_path / "out", FP32, stages.append)
    assert stages == []


def test_force_replaces_a_package(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST_NAME).write_text("old")
    (out / "old.txt").write_text("old")
    export_model(source, out, ExportOptions(precision="fp32", force=True))
    ModelPackage.open(out).check_files()
    assert not (out / "old.txt").exists()
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]


def test_force_never_replaces_what_is_no_package(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="no model package"):
        export_model(source, tmp_path / "out", ExportOptions(precision="fp32", force=True))
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ExportError, "is full"),
        (RuntimeError(f"write failed: {os.strerror(errno.ENOSPC)}"), ExportError, "is full"),
        (PermissionError(errno.EACCES, "denied"), ExportError, "cannot be written"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (ParityError("The graph computes something else."), ParityError, "something else"),
    ],
)
@pytest.mark.parametrize("place", ["write_graph", "check"])
def test_a_failure_leaves_nothing_and_keeps_the_old_package(
    failure: BaseException,
    expected: type[BaseException],
    words: str | None,
    place: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise failure

    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST_NAME).write_text("old")
    if place == "write_graph":
        monkeypatch.setattr("reader_edge_export.graph.write_graph", fail)
    else:
        monkeypatch.setattr("reader_edge_export.parity.check_tree_against_decoding", fail)
    with pytest.raises(expected, match=words):
        export_model(source, out, ExportOptions(precision="fp32", force=True))
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]
    assert (out / MANIFEST_NAME).read_text() == "old"


def test_a_graph_that_computes_something_else_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reader_edge_export.graph_editor import GraphEditor
    from reader_edge_export.quantize import store_fp32

    def store_wrong(editor: GraphEditor) -> None:
        norm = editor.graph.initializers["model.norm.weight"]
        assert norm.const_value is not None
        norm.const_value = ir.tensor(norm.const_value.numpy() * np.float32(1.001), name=norm.name)
        store_fp32(editor)

    monkeypatch.setattr("reader_edge_export.graph.store_fp32", store_wrong)
    with pytest.raises(ParityError, match="differ by"):
        export_model(source, tmp_path / "out", FP32)
    assert not list(tmp_path.glob("out*"))


def test_without_the_extra_the_remedy_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.pipeline.util.find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"pip install 'reader-edge\[export\]'"):
        export_model(tmp_path / "any", tmp_path / "out")


def test_importing_the_exporter_is_cheap() -> None:
    script = (
        "import sys, reader_edge_export; assert not {'torch', 'transformers', 'onnx', 'optimum'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def _change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
