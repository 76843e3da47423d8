"""What rounding costs: the divergence of made-up rows, its limits, and what an export does beyond them."""

from pathlib import Path

import numpy as np
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.checks import package_check
from reader_edge_export.checks.quality import KlDivergence, QualityAgainstSource, max_quality_tokens, source_figures
from reader_edge_export.checks.quality_limits import LIMITS, quality_warning, speculator_warning
from reader_edge_export.package.pass_chain import WholePackage, figures_of
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import PRECISIONS
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.source_models import layered
from tests.export.test_pipeline import Exported, TinyModel
from tests.export.whole_models import chain_logits, load_model, logits_after


def divergence_of(expected: list[list[float]], logits: list[list[float]]) -> KlDivergence:
    divergence = KlDivergence()
    divergence.add(np.array(expected, np.float32), np.array(logits, np.float32))
    return divergence


def test_divergence_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    expected, logits = (rng.normal(scale=3, size=(40, 50)) for _ in range(2))
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (expected, logits))
    divergence = KlDivergence()
    for rows in (slice(0, 7), slice(7, 40)):
        divergence.add(expected[rows].astype(np.float32), logits[rows].astype(np.float32))
    kl = (p * np.log(p / q)).sum(axis=1)
    assert np.allclose(divergence.kl_nats, kl, rtol=1e-5)
    assert divergence.figures() == {
        "mean_kl_nats": pytest.approx(kl.mean()),
        "p99_kl_nats": pytest.approx(np.percentile(kl, 99)),
        "top1_agreement": (p.argmax(axis=1) == q.argmax(axis=1)).mean(),
        "held_out_tokens": 40,
    }


def test_equal_models_do_not_diverge_whatever_is_added_to_a_row() -> None:
    divergence = divergence_of([[1.0, 2.0, 3.0], [90.0, -90.0, 0.0]], [[501.0, 502.0, 503.0], [90.0, -90.0, 0.0]])
    assert divergence.kl_nats == [0, 0]
    assert divergence.num_equal == 2


def test_a_small_divergence_over_a_large_vocabulary_is_not_lost_in_rounding() -> None:
    rng = np.random.default_rng(1)
    expected = rng.normal(scale=2, size=(1, 200_000)).astype(np.float32)
    logits = expected + rng.normal(scale=0.02, size=expected.shape).astype(np.float32)
    p, q = (np.exp(x.astype(np.float64)) for x in (expected, logits))
    p, q = p / p.sum(), q / q.sum()
    exact = float((p * np.log(p / q)).sum())
    assert 1e-4 < exact < 1e-3
    assert divergence_of(expected.tolist(), logits.tolist()).kl_nats[0] == pytest.approx(exact, rel=1e-3)


def test_every_rounded_precision_has_its_limits_and_a_closer_precision() -> None:
    assert set(LIMITS) == {*PRECISIONS} - {"fp32"}
    for limit in LIMITS.values():
        closer = LIMITS.get(limit.closer)
        assert limit.closer == "fp32" or (closer is not None and closer.mean_kl_nats < limit.mean_kl_nats)


@pytest.mark.parametrize(
    ("checks", "is_warned"),
    [
        ({"mean_kl_nats": 0.019, "top1_agreement": 0.951}, False),
        ({"mean_kl_nats": 0.021, "top1_agreement": 0.99}, True),
        ({"mean_kl_nats": 0.001, "top1_agreement": 0.94}, True),
    ],
)
def test_a_package_beyond_its_limits_is_warned_of_with_a_remedy(checks: dict[str, float], is_warned: bool) -> None:
    warning = quality_warning("int8", checks)
    assert (warning is not None) == is_warned
    assert warning is None or f"--precision {LIMITS['int8'].closer}" in warning


def test_full_precision_is_never_warned_of_and_neither_is_what_was_not_measured() -> None:
    assert quality_warning("fp32", {}) is None
    assert quality_warning("int8", {}) is None


def test_a_speculator_that_guesses_nothing_is_told() -> None:
    told = speculator_warning({"speculator_target_agreement": 0.0})
    assert told is not None
    assert "the model's at 0.0 % of places" in told
    assert speculator_warning({"speculator_target_agreement": 0.05}) is None
    assert speculator_warning({}) is None


def test_large_models_are_measured_on_fewer_tokens_but_never_on_few() -> None:
    assert max_quality_tokens(135_000_000) > 10_000
    assert 4000 < max_quality_tokens(494_000_000) < 6000
    assert max_quality_tokens(70_000_000_000) == 1000


@pytest.mark.parametrize(
    ("weight_types", "bits"),
    [(("Q4_1", "F32"), 4), (("F32", "Q6_K", "Q8_0"), 6), (("IQ2_XXS", "F16"), 2), (("F16", "F32"), None), ((), None)],
)
def test_a_source_that_came_rounded_says_to_how_many_bits(weight_types: tuple[str, ...], bits: int | None) -> None:
    assert source_figures(weight_types) == ({} if bits is None else {"source_weight_bits": bits})


def test_figures_are_of_every_token_from_each_texts_first_on(exported: Exported, tiny_model: TinyModel) -> None:
    target = HostTarget.open(ModelPackage.open(exported("llama", "int8", "exact")))
    model = load_model(find_source(tiny_model("llama"), None))
    sequences = [list(range(2, 102)), [5, 4, 3]]  # one longer than a pass
    divergence = KlDivergence()
    for token_ids in sequences:
        divergence.add(chain_logits(model, token_ids).numpy(), logits_after(target, [], token_ids, 1))
    check = QualityAgainstSource(layered(tiny_model("llama")), sequences)
    assert figures_of(WholePackage(target), [check]) == pytest.approx(divergence.figures())
    assert divergence.figures()["held_out_tokens"] == 103


def test_a_package_of_another_model_is_refused(
    exported: Exported, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = HostTarget.open(ModelPackage.open(exported("llama", "int8", "exact")))
    model = layered(tiny_model("granite"))
    monkeypatch.setattr("reader_edge_export.checks.quality.MAX_MEAN_KL", 0.01)  # tiny models say nearly nothing
    with pytest.raises(ParityError, match="export with a higher precision"):
        figures_of(WholePackage(target), [QualityAgainstSource(model, [list(range(60))])])


def test_an_export_tells_its_warning_and_what_the_source_was_rounded_to(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {"mean_kl_nats": 0.4, "top1_agreement": 0.5}
    monkeypatch.setattr(package_check, "figures_of", lambda *_: checks)
    monkeypatch.setattr("reader_edge_export.sources.folder.hugging_face._WEIGHT_TYPES", {"float32": "Q4_1"})
    report = export_model(source, tmp_path / "out", ExportOptions(precision="int8"))
    assert report.warning == quality_warning("int8", checks)
    assert report.checks["source_weight_bits"] == 4
