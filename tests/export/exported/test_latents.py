"""Packages of models whose keys and values come from a latent keep it once, with plain bits in trees and in stages."""

from pathlib import Path

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.proof import prove
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import settle_width
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import Exported, TinyModel
from tests.hybrid_states import check_random_trees
from tests.random_operations import check_random_operations
from tests.tiny_models import build_tiny_model

SIZE = 32 + 16  # of a latent, and of what has positions


@pytest.mark.parametrize(
    ("model_type", "kv", "num_bytes"),
    [
        ("deepseek_v3", "int8", SIZE + 2),
        pytest.param("deepseek_v2", "fp16", 2 * SIZE, marks=pytest.mark.long),
        pytest.param("glm4_moe_lite", "fp32", 4 * SIZE, marks=pytest.mark.long),
        pytest.param("minicpm3", "int8", SIZE + 2, marks=pytest.mark.long),
    ],
)
def test_a_latent_is_kept_once_and_trees_have_plain_bits(
    model_type: str, kv: str, num_bytes: int, exported: Exported
) -> None:
    package = ModelPackage.open(exported(model_type, "int8", "exact", kv, is_checked=False))
    assert package.manifest.layers == (Layer.attention(1, SIZE, is_latent=True),) * 2
    assert package.manifest.past_names() == ["past_key.0", "past_key.1"]
    assert package.manifest.kv_row_bytes == 2 * num_bytes
    target, _ = settle_width(HostTarget.open(package))
    check_random_trees(target, num_kept=1, num_steps=10)
    assert check_random_operations(target, seed=5, num_operations=15) > 10


@pytest.mark.long
@pytest.mark.parametrize("model_type", ["minicpm3", pytest.param("deepseek_v2", marks=pytest.mark.long)])
def test_drafted_answers_are_the_plain_ones(
    model_type: str, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "DRAFTERS", ("stress", "none"))
    monkeypatch.setattr(variants, "ARRIVAL_DRAFTERS", ("stress",))
    engine = Engine.load(
        exported(model_type, "int8", "exact", "int8", is_checked=False), EngineConfig(is_calibrated=False)
    )
    report = prove(engine, [EvalPrompt("the cat"), EvalPrompt("tides, and the sea")], 16)
    assert report.counts.tokens_compared > 0
    assert (report.counts.divergences, report.logit_rows_bit_equal) == (0, True)


@pytest.mark.long
def test_a_cache_of_eight_bits_costs_little_beside_one_of_32(tmp_path: Path) -> None:
    """At the sizes of DeepSeek, whose latent is 576 numbers."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    source = build_tiny_model("deepseek_v3", tmp_path / "source", **sizes)
    losses = {}
    for kv in ("fp32", "int8"):
        report = export_model(source, tmp_path / kv, ExportOptions("int8", kv=kv, check="quick"))
        assert report.checks["tree_rows_equal"] == 1
        losses[kv] = report.checks["mean_kl_nats"]
    assert losses["int8"] < 1.5 * losses["fp32"]


def test_forms_that_are_not_for_cpus_alone_are_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"minicpm3 model has layers that keep latents.*'exact' instead of 'fast'"):
        export_model(tiny_model("minicpm3"), tmp_path / "out", ExportOptions("fp16", "fast"))
    assert not list(tmp_path.iterdir())
