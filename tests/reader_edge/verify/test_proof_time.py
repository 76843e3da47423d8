"""How a proof shares out its time: what users run first, a share for each setting, the same order everywhere."""

from collections.abc import Callable

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.plain_answers import FEW_TOKENS
from reader_edge.verify.proof import prove
from reader_edge.verify.result import ProofReport
from reader_edge.verify.variants import ARRIVAL_VARIANTS, DEFAULT, RESTORED, VARIANTS, TimeBudget, schedule, settings
from reader_edge_runtime import Engine
from reader_edge_runtime.decoding.decoder import Decoder

QUESTIONS = list(map(EvalPrompt, ["# tar\n\n", "1. Save the file.\n2.", "Zürich 🙂", "# git\n", "1 2 3"]))
MAX_TOKENS = 12
SHORTEST = 3  # which is compared first


class Clock:
    """Seconds that pass where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proven(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], ProofReport]:
    """Prove in so many seconds, where each step of decoding takes so long; few drafters, for the test's own time."""
    monkeypatch.setattr(variants, "DRAFTERS", ("stress", DEFAULT))
    monkeypatch.setattr(variants, "ARRIVAL_DRAFTERS", ("stress", DEFAULT))
    monkeypatch.setattr(variants, "RESTORED_DRAFTERS", (DEFAULT,))

    def prove_in(seconds: float, step_s: float) -> ProofReport:
        clock, step = Clock(), Decoder.step

        def timed_step(decoder: Decoder) -> object:
            clock.now += step_s
            return step(decoder)

        with monkeypatch.context() as patches:
            patches.setattr(Decoder, "step", timed_step)
            return prove(engine, QUESTIONS, MAX_TOKENS, budget=TimeBudget(seconds, clock))

    return prove_in


def test_what_users_run_comes_first_in_the_order_of_how_they_run_it() -> None:
    usual, others = settings([])
    by_ids, by_logits, sampled = VARIANTS
    assert [(each.variant, each.batch_size) for each in usual] == [
        *((variant, 1) for variant in VARIANTS),
        *((by_ids, 4), (ARRIVAL_VARIANTS[0], 3)),
        *((by_logits, 4), (sampled, 4), (ARRIVAL_VARIANTS[1], 3), (RESTORED, 4)),
    ]
    assert {each.drafter for each in usual} == {DEFAULT}
    assert not set(usual) & set(others)
    assert {each.drafter for each in settings(["all sources + speculator"])[0]} == {"all sources + speculator"}


def test_each_setting_meets_each_question_once_and_the_order_is_the_same_every_time() -> None:
    usual, others = settings([])
    jobs = schedule(usual, others, range(10))
    assert [job.setting for job in jobs[: len(usual)]] == usual
    for setting in (*usual, *others):
        sent = [question for job in jobs if job.setting == setting for question in job.left]
        assert sent == list(range(10))
    again = schedule(usual, others, range(10))
    assert [(each.setting, each.left) for each in jobs] == [(each.setting, each.left) for each in again]
    turns = [job.setting in usual for job in jobs[len(usual) : 3 * len(usual)]]
    assert turns == [True, False] * len(usual)  # neither waits for the end of the other


@pytest.mark.long
@pytest.mark.parametrize("step_s", [0.3, 0.6])
def test_two_minutes_cover_a_bit_of_all_on_slow_machines(
    proven: Callable[[float, float], ProofReport], step_s: float
) -> None:
    report = proven(120, step_s)
    usual = [run for run in report.runs if run.setting.drafter == DEFAULT]
    assert len(usual) == 9
    assert all(run.is_covered for run in usual), [run.setting for run in usual if not run.is_covered]
    assert all(sum(run.nodes_by_source.values()) > 0 for run in usual)
    assert report.is_promise_kept
    assert report.seconds < 120 + 100 * step_s


def test_the_first_pair_is_whole_and_others_long_enough_to_draft(proven: Callable[[float, float], ProofReport]) -> None:
    report = proven(120, 10)
    first, second, *_ = report.runs
    assert first.num_whole >= 1
    assert first.answers[SHORTEST].tokens_compared == MAX_TOKENS
    assert not second.is_covered
    report = proven(1200, 10)
    assert report.runs[1].answers[SHORTEST].tokens_compared >= FEW_TOKENS


@pytest.mark.long
def test_no_way_takes_the_time_of_the_others(proven: Callable[[float, float], ProofReport]) -> None:
    report = proven(400, 1)
    most = max(run.counts.tokens_compared for run in report.runs)
    assert most < report.counts.tokens_compared / 6


@pytest.mark.long
def test_what_was_cut_is_compared_later_if_time_is_left(proven: Callable[[float, float], ProofReport]) -> None:
    report = proven(1000, 1)
    assert report.seconds < 1000
    assert all(run.num_whole == len(QUESTIONS) for run in report.runs)
    at_once = [run for run in report.runs if not run.setting.variant.is_arriving]
    assert any(run.counts.tokens_compared > len(QUESTIONS) * MAX_TOKENS for run in at_once)


def test_the_same_clock_gives_the_same_proof(proven: Callable[[float, float], ProofReport]) -> None:
    first, second = proven(60, 0.5), proven(60, 0.5)
    assert first == second
    assert 0 < sum(not run.is_covered for run in first.runs) < len(first.runs)
