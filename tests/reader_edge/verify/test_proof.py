"""The proof: it passes where drafting changes nothing, and catches what does."""

from itertools import product

import numpy as np
import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.drafters import HostileSource
from reader_edge.verify.plain_answers import behind_long_texts
from reader_edge.verify.proof import ProofListener, prove
from reader_edge.verify.result import ProofReport
from reader_edge.verify.variants import (
    ARRIVAL_BATCH,
    ARRIVAL_DRAFTERS,
    ARRIVAL_VARIANTS,
    BATCH_SIZES,
    DRAFTERS,
    RESTORED,
    RESTORED_DRAFTERS,
    SOURCE_SETS,
    VARIANTS,
    WIDEST_BATCH,
    Setting,
)
from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.cache import Cache, SlotContents
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.prefix_cache import PrefixCache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProofError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.images.prompt_reader import ReadPrompt
from reader_edge_runtime.target import Pass
from tests.random_drafter import SecondBest
from tests.reader_edge.package_copy import PackageCopy

PROMPTS = ["# tar\n\n", "1. Save the file.\n2. Save the file.\n3.", "Zürich 🙂"]
QUESTIONS = list(map(EvalPrompt, PROMPTS))
MAX_TOKENS = 16


@pytest.fixture(scope="module")
def report(shared_engine: Engine) -> ProofReport:
    return prove(shared_engine, QUESTIONS, MAX_TOKENS)


def test_the_demo_package_is_lossless_bit_for_bit(report: ProofReport) -> None:
    num_tokens = len(QUESTIONS) * MAX_TOKENS
    at_once = [run for run in report.runs if not run.setting.variant.is_arriving]
    arriving = [run for run in report.runs if run.setting.variant.is_arriving]
    every = [Setting(*each) for each in product(DRAFTERS, VARIANTS, BATCH_SIZES)]
    every += [Setting(each, RESTORED, WIDEST_BATCH) for each in RESTORED_DRAFTERS]
    every += [Setting(*each) for each in product(ARRIVAL_DRAFTERS, ARRIVAL_VARIANTS, [ARRIVAL_BATCH])]
    assert {run.setting for run in report.runs} == set(every)
    assert len(report.runs) == len(every)
    assert all(run.num_whole == len(QUESTIONS) for run in report.runs)
    assert all(run.counts.tokens_compared == num_tokens for run in at_once)
    assert all(num_tokens <= run.counts.tokens_compared <= 3 * num_tokens for run in arriving)
    assert all(
        run.counts.logit_rows == run.counts.tokens_compared * run.setting.variant.reads_logits for run in report.runs
    )
    for run in report.runs:
        if run.setting.variant.reads_logits or run.setting.variant.is_sampled:
            assert run.counts.top_rows >= run.counts.logit_rows
            assert run.counts.top_rows > 0
        else:
            assert run.counts.top_rows == 0
    assert report.counts.top_rows_agreeing == report.counts.top_rows
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.is_promise_kept
    assert (report.provider, report.attention) == ("CPUExecutionProvider", "exact")


def test_every_way_of_passing_is_exercised(report: ProofReport) -> None:
    runs = {
        (run.setting.drafter, run.setting.batch_size): run for run in report.runs if run.setting.variant in VARIANTS
    }
    arriving = {run.setting.drafter: run for run in report.runs if run.setting.variant in ARRIVAL_VARIANTS}
    assert runs["stress", 1].acceptance_length > 3
    assert runs["stress", 4].acceptance_length > 3
    stress = runs["stress", 1]
    assert 0 < sum(stress.accepted_by_source.values()) < sum(stress.nodes_by_source.values())
    assert arriving["stress"].acceptance_length > 1.5
    assert arriving["all sources + hostile"].nodes_by_source["hostile"] > 0
    assert runs["context + history", 4].acceptance_length > 3
    assert runs["context + datastore", 1].acceptance_length > runs["context", 1].acceptance_length + 0.5
    for drafter, sources in SOURCE_SETS.items():
        verified = runs[drafter, 1].nodes_by_source.keys() | runs[drafter, 4].nodes_by_source.keys()
        assert sources <= verified <= sources | {"context"}


def test_a_source_that_names_foreign_ids_is_stopped_by_name(report: ProofReport) -> None:
    assert report.refusal is not None
    assert "'hostile'" in report.refusal
    assert "the vocabulary has 6144" in report.refusal


@pytest.mark.usefixtures("few_drafters")
def test_foreign_ids_that_get_through_break_the_promise(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostileSource, "propose", lambda _, draft_requests: [None] * len(draft_requests))
    report = prove(engine, QUESTIONS[:1], 4)
    assert report.refusal is None
    assert report.counts.divergences == 0
    assert not report.is_promise_kept


@pytest.mark.long
@pytest.mark.usefixtures("few_drafters")
def test_the_engine_keeps_its_drafter_and_its_cache(engine: Engine) -> None:
    drafter = engine.decoder.drafter
    engine.generate(PROMPTS[0])
    prove(engine, QUESTIONS[:1], 4)
    assert engine.decoder.drafter is drafter
    assert engine.generate(PROMPTS[0]).stats.num_reused_tokens > 0


@pytest.mark.usefixtures("few_drafters")
def test_progress_grows_to_its_end_and_one_estimate_is_shown(engine: Engine) -> None:
    shown: list[tuple[int, int]] = []
    estimates: list[float] = []
    prove(engine, QUESTIONS[:1], 4, listener=ProofListener(lambda *each: shown.append(each), estimates.append))
    assert shown == sorted(shown)
    assert shown[-1] == (1000, 1000)
    assert len(estimates) == 1
    assert estimates[0] > 0


@pytest.mark.usefixtures("few_drafters")
def test_a_mask_that_shows_siblings_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    right = DraftTree.ancestors_and_depths
    monkeypatch.setattr(
        DraftTree, "ancestors_and_depths", lambda tree: (np.tri(len(tree), dtype=np.bool_), right(tree)[1])
    )
    report = prove(engine, QUESTIONS[:1], MAX_TOKENS)
    assert report.counts.divergences > 0
    assert not report.logit_rows_bit_equal
    for run, divergence in report.first_divergences():
        assert run.setting.drafter == "stress" or run.acceptance_length > 1
        assert divergence.plain_token_id != divergence.drafted_token_id
        assert (divergence.logit_gap is None) != run.setting.variant.reads_logits
        if divergence.logit_gap is not None and not run.setting.variant.is_sampled:
            assert divergence.logit_gap > 0


@pytest.mark.long
@pytest.mark.usefixtures("few_drafters")
def test_rows_moved_wrongly_by_a_commit_are_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(cache: HostCache, slot: int, path: list[int]) -> None:
        cache.lengths[slot] += len(path)

    monkeypatch.setattr(HostCache, "commit", commit)
    assert prove(engine, QUESTIONS[:1], MAX_TOKENS).counts.divergences > 0


def _noisy(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let logits depend on the width of a pass, as kernels do that are not invariant."""
    forward = HostTarget.forward

    def noisy_forward(target: HostTarget, cache: Cache, wanted: Pass) -> ForwardResult:
        if max(map(len, wanted.trees)) == 1:
            return forward(target, cache, wanted)
        logits = forward(target, cache, wanted._replace(wants_logits=True)).wanted_logits
        logits += scale * np.sin(np.arange(logits.shape[-1], dtype=np.float32))
        found = np.argpartition(-logits, target.manifest.top_k, axis=-1)[..., : target.manifest.top_k]
        order = np.argsort(-np.take_along_axis(logits, found, axis=-1), axis=-1)
        top_ids = np.take_along_axis(found, order, axis=-1)
        top_logits = np.take_along_axis(logits, top_ids, axis=-1)
        return ForwardResult(top_ids, top_logits, logits if wanted.wants_logits else None)

    monkeypatch.setattr(HostTarget, "forward", noisy_forward)


@pytest.mark.usefixtures("few_drafters")
def test_kernels_that_depend_on_the_width_are_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    _noisy(1e-5, monkeypatch)
    report = prove(engine, QUESTIONS[:1], 8)
    assert not report.logit_rows_bit_equal
    assert report.counts.divergences == 0
    assert not report.is_promise_kept


def _swapped(column: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let wide passes name a row's best successors in a wrong order, from a column on."""
    forward = HostTarget.forward

    def swapping_forward(target: HostTarget, cache: Cache, wanted: Pass) -> ForwardResult:
        result = forward(target, cache, wanted)
        if max(map(len, wanted.trees)) > 1:
            result.top_ids[..., column:] = result.top_ids[..., column:][..., ::-1].copy()
        return result

    monkeypatch.setattr(HostTarget, "forward", swapping_forward)


@pytest.mark.usefixtures("few_drafters")
def test_best_ids_that_are_not_those_of_the_logits_are_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy answers are made of these ids, and no logits are read."""
    _swapped(0, monkeypatch)
    report = prove(engine, QUESTIONS[:1], 4)
    parts = report.by_variant()
    by_top_ids, by_logits = (
        [part for variant, part in parts.items() if variant.reads_logits == reads] for reads in (False, True)
    )
    assert all(part.counts.divergences > 0 for part in by_top_ids)
    assert all(part.counts.divergences == 0 and part.logit_rows_bit_equal for part in by_logits)
    assert not report.is_promise_kept


@pytest.mark.usefixtures("few_drafters")
def test_wrong_ids_behind_the_best_one_are_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made of them."""
    _swapped(1, monkeypatch)
    report = prove(engine, QUESTIONS[:1], 3)
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert 0 < report.counts.top_rows_agreeing < report.counts.top_rows
    assert not report.is_promise_kept


@pytest.mark.long
@pytest.mark.usefixtures("few_drafters")
def test_after_a_divergence_nothing_of_that_answer_is_compared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    _noisy(20, monkeypatch)
    report = prove(engine, QUESTIONS[:2], 6)
    for run in report.runs:
        if run.setting.variant in ARRIVAL_VARIANTS:
            continue
        firsts = [divergence.position + 1 for divergence in run.divergences]
        assert run.counts.tokens_compared == sum(firsts) + 6 * (2 - len(firsts))
        assert run.counts.logit_rows == run.counts.tokens_compared * run.setting.variant.reads_logits
    first = {divergence.prompt: divergence.position for _, divergence in report.first_divergences()}
    for run in report.runs:
        assert all(first[each.prompt] <= each.position for each in run.divergences)


@pytest.mark.long
@pytest.mark.usefixtures("few_drafters")
def test_an_answer_that_ends_early_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Decoder.step

    def hasty_step(decoder: Decoder) -> object:
        advanced = step(decoder)
        for sequence in list(decoder.running):
            if sequence.config.is_drafted and sequence.num_output_tokens > 4:
                decoder.cancel(sequence)
        return advanced

    monkeypatch.setattr(Decoder, "step", hasty_step)
    report = prove(engine, QUESTIONS[:1], max_tokens=40)
    at_once = [run for run in report.runs if run.setting.variant in VARIANTS]
    assert [len(run.divergences) for run in at_once] == [int(run.setting.drafter != "none") for run in at_once]
    assert all(divergence.drafted_token_id is None for _, divergence in report.first_divergences())


@pytest.mark.usefixtures("few_drafters")
def test_answers_that_meet_the_context_limit_are_compared_to_their_end(package: PackageCopy) -> None:
    package.change_manifest(max_context=24)
    report = prove(Engine.load(package.folder), [EvalPrompt("1 2 3 4 5 6 7 8")], 100)
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.runs[0].counts.tokens_compared < 24


def test_prompts_stand_behind_those_of_others_as_far_as_the_context_goes() -> None:
    prompts = [ReadPrompt("", ids, ids) for ids in ([1, 2], [3, 4, 5])]
    assert behind_long_texts(prompts, 0, 300, 12) == prompts
    first, second = (each.token_ids for each in behind_long_texts(prompts, 200, 300, 12))
    assert (len(first), len(second)) == (200, 199)  # a ragged batch
    assert (first[:6], first[-2:]) == ([1, 2, 3, 4, 5, 1], [1, 2])
    assert (second[:6], second[-3:]) == ([3, 4, 5, 1, 2, 3], [3, 4, 5])
    assert [len(each.token_ids) for each in behind_long_texts(prompts, 1 << 20, 300, 12)] == [294, 293]


@pytest.mark.long
@pytest.mark.usefixtures("few_drafters")
def test_answers_are_compared_to_the_end_of_the_context_and_their_prompts_scored_once(package: PackageCopy) -> None:
    """Of a context of 300 tokens, whose end cuts 12 tokens to 6 and one more for each of the further prompts."""
    package.change_manifest(max_context=300)
    report = prove(Engine.load(package.folder, EngineConfig(is_calibrated=False)), QUESTIONS, 12, past=1 << 20)
    assert report.is_promise_kept
    assert report.longest_text == 300
    at_once = [run for run in report.runs if not run.setting.variant.is_arriving]
    assert {run.counts.tokens_compared for run in at_once} == {6 + 7 + 8}
    assert report.num_drafted > 6 + 7 + 8


def test_a_rule_of_acceptance_that_is_not_exact_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(ProofError, match=r"^The acceptance rule 'second best' is not exact"):
        prove(engine, QUESTIONS[:1], 4, acceptance=SecondBest())


def test_wrong_rows_from_disk_are_found(engine: Engine, few_drafters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = PrefixCache._contents

    def negated(self: PrefixCache, cache: Cache, name: bytes, kind: str, max_bytes: int) -> SlotContents | None:
        found = contents(self, cache, name, kind, max_bytes)
        return None if found is None else found._replace(rows=tuple(-rows for rows in found.rows))

    monkeypatch.setattr(PrefixCache, "_contents", negated)
    report = prove(engine, QUESTIONS[:1], 4)
    assert not report.is_promise_kept
    wrong = [run for run in report.runs if run.counts.logit_rows_equal < run.counts.logit_rows]
    assert {run.setting.variant for run in wrong} == {RESTORED}
