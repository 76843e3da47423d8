"""Packages with recurrent layers, or layers that share keys and values, as users run them: proofs, sessions, prompts
again, whatever kernels there are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.proof import prove
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import settle_width
from reader_edge_runtime.package.model_package import ModelPackage
from tests.hybrid_states import check_random_trees
from tests.random_operations import check_random_operations

HYBRIDS = ["lfm2", "qwen3_5_text", "gemma4_text"]
UNMEASURED = EngineConfig(is_calibrated=False)
CONFIG = GenerationConfig(max_tokens=40, ignores_eos=True)


@pytest.fixture(params=HYBRIDS)
def package(request: pytest.FixtureRequest, exported: Callable[..., Path]) -> Path:
    return exported(request.param, "int8", "exact")


def test_hybrids_are_lossless_bit_for_bit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "DRAFTERS", ("stress", "none"))
    monkeypatch.setattr(variants, "ARRIVAL_DRAFTERS", ("stress",))
    report = prove(Engine.load(package, UNMEASURED), [EvalPrompt("the cat"), EvalPrompt("tides, and the sea")], 16)
    assert report.counts.tokens_compared > 0
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    stress = [run for run in report.runs if run.setting.drafter == "stress"]
    assert max(run.acceptance_length for run in stress) > 2


@pytest.mark.parametrize("form", [("fp32", None), ("int8", None), ("int4", None), ("int8", "int8"), ("int8", "fp16")])
@pytest.mark.parametrize("model_type", HYBRIDS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("two_cores")
def test_trees_have_the_bits_of_single_tokens_and_commits_those_of_a_fresh_prefill(
    exported: Callable[..., Path], model_type: str, form: tuple[str, str | None], threads: int
) -> None:
    precision, kv = form
    package = ModelPackage.open(exported(model_type, precision, "exact", kv))
    target, _ = settle_width(HostTarget.open(package, threads))
    check_random_trees(target, num_kept=1, num_steps=20)


@pytest.mark.parametrize("model_type", [*HYBRIDS, "granitemoehybrid", "qwen3_moe", "gemma4_text-experts"])
@pytest.mark.usefixtures("two_cores")
def test_random_operations_on_slots_leave_what_a_fresh_prefill_leaves(
    exported: Callable[..., Path], model_type: str
) -> None:
    target, _ = settle_width(HostTarget.open(ModelPackage.open(exported(model_type, "int8", "exact")), 2))
    assert check_random_operations(target, seed=5, num_operations=25) > 20


@pytest.mark.parametrize("uses_native", [True, False])
def test_prompts_again_and_sessions_go_on_from_where_they_stood(
    package: Path, uses_native: bool, tmp_path: Path
) -> None:
    engine = Engine.load(package, EngineConfig(is_calibrated=False, uses_native=uses_native))
    fresh = engine.generate("the cat sat on the mat", CONFIG)
    again = engine.generate("the cat sat on the mat", CONFIG)
    assert again.token_ids == fresh.token_ids
    assert again.stats.num_reused_tokens == again.stats.num_prompt_tokens - 1
    engine.save_session(tmp_path / "kept")
    other = Engine.load(package, UNMEASURED)
    other.load_session(tmp_path / "kept")
    text = [*engine.encode_prompt("the cat sat on the mat"), *fresh.token_ids, 5]
    went_on = other.generate(text, CONFIG)
    assert went_on.stats.num_reused_tokens >= len(text) - 3
    other.forget()
    assert other.generate(text, CONFIG).token_ids == went_on.token_ids
    assert went_on.stats.num_accepted_tokens + went_on.stats.num_steps > 0
