"""Checks of an export: conversations as transformers renders them, what rounding costs, and the limits of both."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.checks import package_check
from reader_edge_export.checks.chat_check import ChatCheck, check_chats, conversations
from reader_edge_export.checks.quality import KlDivergence, QualityAgainstSource, max_quality_tokens, source_figures
from reader_edge_export.checks.quality_limits import quality_warning, speculator_warning
from reader_edge_export.package.pass_chain import WholePackage, figures_of
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.tokenizer import special_tokens_of, text_tokenizer, write_tokenizer
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.machine.bounded_process import run_bounded
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, PRECISIONS, TOOL_TEMPLATE_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation
from tests.export.conftest import Exported, TinyModel
from tests.export.source_models import chain_logits, layered, load_model, logits_after
from tests.runtime.text.text_cases import byte_level_tokenizer

CHATML = """{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}
{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}
{{ c.function.name }}{{ a if a is string else a | tojson }}{% endfor %}{{ m.reasoning_content }}{{ eos_token }}
{% endfor %}{{ tools | tojson }}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


ENDS = {"bos_token": "<end>", "eos_token": "<end>", "pad_token": "a"}


def tokenizer_with(template: Any, **special: Any) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), **special)
    tokenizer.chat_template = template
    return tokenizer


def check(template: Any) -> ChatCheck:
    tokenizer = tokenizer_with(template, **ENDS)
    return check_chats(tokenizer, text_tokenizer(tokenizer))


def test_a_template_that_takes_all_is_rendered_as_transformers_does() -> None:
    compared = check(CHATML + "{# system, developer #}")
    assert compared == ChatCheck(num_compared=len(dict(conversations())))
    assert compared.num_compared >= 30


def test_what_a_template_does_not_take_is_reported() -> None:
    compared = check("{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}")
    assert {"tools", "tools and a system message"} <= set(compared.adapted)
    assert compared.different == ()
    assert "a call with null content" in compared.repaired
    assert "a question" not in compared.different
    assert compared.figures() == {
        "chats_compared": float(compared.num_compared),
        "chats_suited": float(len(compared.adapted)),
        "chats_different": 0.0,
    }


def test_what_differs_for_no_reason_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.dumps([["something else", [1]] for _ in conversations()]).encode()
    monkeypatch.setattr("reader_edge_export.checks.chat_check.run_bounded", lambda work: expected)
    compared = check("{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}")
    assert "a question" in compared.different
    assert "tools" in compared.adapted
    assert not set(compared.different) & set(compared.adapted)


def test_a_template_that_transformers_cannot_finish_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.checks.chat_check.run_bounded", partial(run_bounded, cpu_s=0.5))
    only_there = "{% if 'TemplateDict' in (dict | string) %}"
    assert check(only_there + "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endif %}") == ChatCheck()


def test_without_a_template_nothing_is_compared() -> None:
    assert check(None) == ChatCheck()
    assert ChatCheck().figures() == {}


def test_special_tokens_are_the_tokenizers_own() -> None:
    tokenizer = tokenizer_with("x", **ENDS)
    assert special_tokens_of(tokenizer) == ENDS
    tokenizer.add_special_tokens({"additional_special_tokens": ["<x>"]})
    assert set(special_tokens_of(tokenizer)) == set(ENDS)  # a list has no name


TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def test_a_template_of_its_own_for_tools_is_kept_and_taken(tmp_path: Path) -> None:
    tokenizer = tokenizer_with({"default": "plain", "tool_use": "{{ tools | length }} tools", "rag": "x"})
    write_tokenizer(tokenizer, tmp_path)
    assert (tmp_path / CHAT_TEMPLATE_NAME).read_text() == "plain"
    assert (tmp_path / TOOL_TEMPLATE_NAME).read_text() == "{{ tools | length }} tools"
    text, user = text_tokenizer(tokenizer), {"role": "user", "content": "x"}
    assert text.render_chat(Conversation([user])) == "plain"
    assert text.render_chat(Conversation([user], [TOOL])) == "1 tools"
    compared = check_chats(tokenizer, text)
    assert (compared.adapted, compared.different) == ((), ())


def test_templates_without_a_default_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="none is called 'default': 'rag' is taken"):
        write_tokenizer(tokenizer_with({"rag": "x"}), tmp_path)
    assert (tmp_path / CHAT_TEMPLATE_NAME).read_text() == "x"


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
    assert [name for name, each in PRECISIONS.items() if each.limit is None] == ["fp32"]
    for limit in (each.limit for each in PRECISIONS.values() if each.limit is not None):
        closer = PRECISIONS[limit.closer].limit
        assert closer is None or closer.mean_kl_nats < limit.mean_kl_nats


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
    assert warning is None or "--precision int8-a16 stays closer" in warning


def test_full_precision_is_never_warned_of_and_neither_is_what_was_not_measured() -> None:
    assert quality_warning("fp32", {}) is None
    assert quality_warning("int8", {}) is None


def test_a_speculator_that_guesses_nothing_is_warned_of() -> None:
    sentence = speculator_warning({"speculator_target_agreement": 0.0})
    assert sentence is not None
    assert "the model's at 0.0 % of places" in sentence
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


def test_another_models_package_is_refused(
    exported: Exported, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = HostTarget.open(ModelPackage.open(exported("llama", "int8", "exact")))
    model = layered(tiny_model("granite"))
    monkeypatch.setattr("reader_edge_export.checks.quality.MAX_MEAN_KL", 0.01)  # tiny models say nearly nothing
    with pytest.raises(ParityError, match="export with a higher precision"):
        figures_of(WholePackage(target), [QualityAgainstSource(model, [list(range(60))])])


def test_an_export_warns_with_the_sources_bits(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {"mean_kl_nats": 0.4, "top1_agreement": 0.5}
    monkeypatch.setattr(package_check, "figures_of", lambda *_: checks)
    monkeypatch.setattr("reader_edge_export.sources.folder.hugging_face._WEIGHT_TYPES", {"float32": "Q4_1"})
    report = export_model(source, tmp_path / "out", ExportOptions(precision="int8"))
    assert report.warning == quality_warning("int8", checks)
    assert report.checks["source_weight_bits"] == 4
