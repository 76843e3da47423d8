"""What an export refuses, in one sentence each, and that a failed one leaves nothing behind and the old as it was."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.architectures import (
    REFUSED,
    SUPPORTED,
    check_architecture,
    check_options,
    max_context_of,
)
from reader_edge_runtime.errors import (
    ConfigError,
    ExportError,
    ParityError,
    ReaderEdgeError,
    TokenizerError,
    UnsupportedArchitectureError,
)
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from tests.tiny_models import VOCAB_SIZE, change_config, tiny_config


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp32", "calibration_text": Path("text")},
        {"precision": "fp16", "attention": "exact", "calibration_text": Path("text")},
        {"precision": "fp8"},
        {"attention": "slow"},
        {"max_context": 0},
        {"precision": "int4", "attention": "portable"},
        {"precision": "bf16", "attention": "portable"},
        {"kv": "int4"},
        {"precision": "fp32", "kv": "int8"},
        {"attention": "fast", "kv": "int8"},
        {"attention": "portable", "kv": "fp16"},
        {"precision": "fp16", "attention": "fast", "kv": "fp16"},
        {"precision": "fp16", "kv": "fp32"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ExportOptions(**options)  # type: ignore[arg-type]


FP32 = ExportOptions(precision="fp32")


def test_an_unknown_architecture_is_refused_before_torch_is_imported(source: Path, tmp_path: Path) -> None:
    change_config(source, model_type="mamba")
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


@pytest.mark.parametrize("limit", [None, "64", 1, 15, 2.5, 10**30])
def test_a_context_that_no_package_can_have_is_refused(limit: object) -> None:
    with pytest.raises(ExportError, match="must be from 16 to 268435456: fetch the model again"):
        max_context_of({"max_position_embeddings": limit}, None)


def test_more_context_than_the_model_has_is_refused() -> None:
    assert max_context_of({"max_position_embeddings": 64}, 64) == 64
    with pytest.raises(ExportError, match="max_context is 65, but the model's own ends at 64"):
        max_context_of({"max_position_embeddings": 64}, 65)


def test_a_config_of_another_kind_of_folder_leads_to_the_right_one() -> None:
    """gpt-oss's folder has one of OpenAI's own form in it, whose config names no model type."""
    with pytest.raises(UnsupportedArchitectureError, match=r"no model_type.* of gpt-oss the one above 'original'"):
        check_architecture({"num_hidden_layers": 24, "num_experts": 32, "experts_per_token": 4})


@pytest.mark.parametrize(
    ("precision", "attention", "remedy"),
    [
        ("int8", "fast", "use attention 'exact' instead of 'fast'."),
        ("fp16", "exact", "use precision 'int8' or another instead of 'fp16', which is made for GPUs."),
        ("bf16", "fast", "'exact' instead of 'fast' and precision 'int8' or another instead of 'bf16'"),
    ],
)
def test_a_form_for_gpus_is_refused_with_what_to_change(precision: str, attention: str, remedy: str) -> None:
    config = tiny_config("gpt_oss")
    with pytest.raises(ConfigError, match=f"A gpt_oss model has layers that send tokens to experts, .*{remedy}"):
        check_options(config, precision, attention)
    check_options(config, "fp32", "exact")
    check_options(tiny_config("llama"), precision, attention)


@pytest.mark.parametrize("model_type", REFUSED)
def test_families_that_are_known_and_not_taken_are_refused_by_their_names(model_type: str) -> None:
    words = re.escape(f"'{model_type}' is {', '.join(REFUSED[model_type])}, and cannot be exported")
    with pytest.raises(UnsupportedArchitectureError, match=words):
        check_architecture({"model_type": model_type, "text_config": {}})
    models = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    assert f"`{model_type}`" in models.partition("## Refused by name")[2]
    assert model_type not in SUPPORTED


def test_a_config_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ExportError, match="has 1073741824 bytes, more than it may have"):
        export_model(str(tmp_path), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_config": {}}, "text model"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a text generator"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "GPTQ of 3 bits"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral'"),
    ],
)
def test_inexpressible_attention_is_refused(
    changes: dict[str, object], words: str, source: Path, tmp_path: Path
) -> None:
    change_config(source, **changes)
    with pytest.raises(UnsupportedArchitectureError, match=words):
        export_model(source, tmp_path / "out", FP32)


def test_attention_with_position_biases_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    forward: Callable[..., object] = modeling_llama.LlamaAttention.forward

    def with_biases(self: object, *args: object, **kwargs: object) -> object:
        return forward(self, *args, **kwargs, position_bias=torch.zeros(4))

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", with_biases)
    with pytest.raises(UnsupportedArchitectureError, match="position_bias"):
        export_model(source, tmp_path / "out", FP32)
    assert not (tmp_path / "out").exists()


def _another_models_tokenizer(source: Path) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_tokens([f"extra{number}" for number in range(VOCAB_SIZE)])
    tokenizer.save(str(source / "tokenizer.json"))


SPOILT: dict[str, tuple[Callable[[Path], object], type[ReaderEdgeError]]] = {  # by words of the refusal
    r"no config\.json": (lambda source: (source / "config.json").unlink(), ExportError),
    r"no tokenizer\.json": (lambda source: (source / "tokenizer.json").unlink(), TokenizerError),
    "no weights": (lambda source: (source / "model.safetensors").unlink(), ExportError),
    r"config\.json.*(?#half)": (lambda source: (source / "config.json").write_text("{"), ExportError),
    r"config\.json.*(?#list)": (lambda source: (source / "config.json").write_text("[]"), ExportError),
    "max_position_embeddings as None": (
        lambda source: (source / "config.json").write_text('{"model_type": "llama"}'),
        ExportError,
    ),
    "cannot be loaded": (lambda source: (source / "model.safetensors").write_bytes(b"\x00" * 64), ExportError),
    r"lack model\.layers\.2": (
        lambda source: change_config(source, num_hidden_layers=3, layer_types=None),
        ExportError,
    ),
    f"vocabulary ends at {VOCAB_SIZE - 1}": (_another_models_tokenizer, TokenizerError),
}


@pytest.mark.parametrize("words", SPOILT)
def test_a_spoilt_folder_is_refused(words: str, source: Path, tmp_path: Path) -> None:
    spoil, error = SPOILT[words]
    spoil(source)
    with pytest.raises(error, match=words):
        export_model(source, tmp_path / "out", FP32)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="No model at"):
        export_model(tmp_path / "nowhere", tmp_path / "out", FP32)


def test_a_model_from_the_hub_keeps_its_name(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "out", FP32, name="somebody/something")
    assert ModelPackage.open(tmp_path / "out").manifest.source_name == "somebody/something"


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize(
    ("name", "factor", "words"),
    [
        ("q_proj", float("nan"), "not all finite numbers, .*q_proj"),
        ("layernorm", float("inf"), "not all finite numbers, .*layernorm"),
        ("norm", 1e25, "too large for 32-bit numbers"),
    ],
)
def test_impossible_weights_are_refused(
    name: str, factor: float, words: str, precision: str, source: Path, tmp_path: Path
) -> None:
    weights = load_file(source / "model.safetensors")
    for key in weights:
        if name in key:
            weights[key] *= factor
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=rf"^[^\n]*{words}[^\n]*fetch the model again\.$"):
        export_model(source, tmp_path / "out", ExportOptions(precision=precision))
    assert not list(tmp_path.glob("out*"))


def test_a_calibration_text_that_cannot_be_read_is_named(source: Path, tmp_path: Path) -> None:
    options = ExportOptions(calibration_text=tmp_path / "missing.txt")
    with pytest.raises(ExportError, match=r"missing\.txt"):
        export_model(source, tmp_path / "out", options)
    assert not list(tmp_path.glob("out*"))


def test_an_existing_folder_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    stages: list[str] = []
    with pytest.raises(ExportError, match="exists already"):
        export_model(source, tmp_path / "out", FP32, stages.append)
    assert stages == []


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ExportError, "is full"),
        (RuntimeError(f"write failed: {os.strerror(errno.ENOSPC)}"), ExportError, "is full"),
        (
            PermissionError(errno.EACCES, "denied", "part"),
            ExportError,
            r"cannot be written \(denied\): choose another folder.$",
        ),
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
        monkeypatch.setattr("reader_edge_export.package_export.write_graph", fail)
    else:
        monkeypatch.setattr("reader_edge_export.checks.package_check.figures_of", fail)
    with pytest.raises(expected, match=words):
        export_model(source, out, ExportOptions(precision="fp32", force=True))
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]
    assert (out / MANIFEST_NAME).read_text() == "old"


def test_a_graph_unlike_the_model_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reader_edge_export.onnx_graph.graph_editor import GraphEditor
    from reader_edge_export.quantize.weight_storage import store_weights

    def store_wrong(editor: GraphEditor, *arguments: Any) -> None:
        norm = editor.graph.initializers["model.norm.weight"]
        assert norm.const_value is not None
        norm.const_value = ir.tensor(norm.const_value.numpy() * np.float32(1.001), name=norm.name)
        store_weights(editor, *arguments)

    monkeypatch.setattr("reader_edge_export.package_graph.store_weights", store_wrong)
    with pytest.raises(ParityError, match="differ by"):
        export_model(source, tmp_path / "out", FP32)
    assert not list(tmp_path.glob("out*"))
