"""Random arrivals: requests join and leave at moments drawn at random, and faults that only show then are caught."""

from collections import Counter

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.arrivals import at_random, num_at_random
from reader_edge.verify.logit_comparer import PlainAnswer
from reader_edge.verify.proof import prove
from reader_edge.verify.result import ProofReport
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass

QUESTIONS = list(map(EvalPrompt, ["# tar\n\n", "1. Save the file.\n2. Save the file.\n3.", "Zürich 🙂", "# git\n"]))
MAX_TOKENS = 16
ANSWERS = [
    PlainAnswer(i, (i,), GenerationConfig(max_tokens=20), list(range(100 * i, 100 * i + 20)), [bytes([i])] * 20)
    for i in range(9)
]


@pytest.fixture
def only_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "DRAFTERS", ())


def _prove(engine: Engine) -> ProofReport:
    return prove(engine, QUESTIONS, MAX_TOKENS)


def test_the_same_seed_gives_the_same_arrivals_and_another_others() -> None:
    assert at_random(ANSWERS, True, seed=1) == at_random(ANSWERS, True, seed=1) != at_random(ANSWERS, True, seed=2)


def test_every_answer_is_requested_once_to_its_end_and_some_are_given_up() -> None:
    arrivals = at_random(ANSWERS, True, seed=0)
    assert len(arrivals) == num_at_random(len(ANSWERS))
    staying = [arrival.plain for arrival in arrivals if arrival.num_steps is None]
    assert sorted(plain.question for plain in staying) == list(range(len(ANSWERS)))
    for plain in staying:
        whole, length = ANSWERS[plain.question], plain.config.max_tokens
        assert 10 <= length == len(plain.digests) <= 20
        assert plain.token_ids == whole.token_ids[:length]
    assert [arrival.step for arrival in arrivals] == sorted(arrival.step for arrival in arrivals)
    assert {arrival.is_drafted for arrival in arrivals} == {True, False}
    assert not any(arrival.is_drafted for arrival in at_random(ANSWERS, False, seed=0))


@pytest.mark.long
@pytest.mark.usefixtures("only_arrivals")
def test_requests_join_among_others_in_chunks_and_are_given_up_in_every_state(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    step, cancel = Decoder.step, Decoder.cancel

    def watched_step(decoder: Decoder) -> list[Request]:
        advanced = step(decoder)
        seen["prompts between chunks beside running answers"] += (
            decoder.scheduler.prefilling is not None and len(decoder.running) > 0
        )
        seen["waiting in line"] += len(decoder.waiting) > 0
        seen["greedy beside sampled"] += len({request.takes_best for request in decoder.running}) > 1
        seen["plain beside drafted"] += len({request.drafter is None for request in decoder.running}) > 1
        return advanced

    def watched_cancel(decoder: Decoder, request: Request) -> None:
        seen["cancelled in line"] += request in decoder.waiting
        seen["cancelled during its prompt"] += request is decoder.scheduler.prefilling
        seen["cancelled during its answer"] += request in decoder.running
        cancel(decoder, request)

    monkeypatch.setattr(Decoder, "step", watched_step)
    monkeypatch.setattr(Decoder, "cancel", watched_cancel)
    report = _prove(engine)
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.counts.tokens_compared > 6 * len(QUESTIONS) * MAX_TOKENS
    assert len(seen) == 7
    assert min(seen.values()) > 0, seen


def test_a_prompt_that_is_read_wrongly_once_others_have_taken_a_step_is_caught(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it shows where all requests come at once."""
    monkeypatch.setattr(variants, "DRAFTERS", ("stress",))
    monkeypatch.setattr(variants, "ARRIVAL_DRAFTERS", ("stress",))
    forward = HostTarget.forward

    def forgetful_forward(target: HostTarget, cache: Cache, wanted: Pass) -> ForwardResult:
        if wanted.first_slot > 0 and cache.lengths[wanted.first_slot] >= 32:
            wanted = wanted._replace(trees=[DraftTree.chain([0, *wanted.trees[0].token_ids[1:]])])
        return forward(target, cache, wanted)

    monkeypatch.setattr(HostTarget, "forward", forgetful_forward)
    report = _prove(engine)
    assert {run.setting.variant for run in report.runs if run.divergences} == set(variants.ARRIVAL_VARIANTS)
    assert not report.logit_rows_bit_equal
    assert not report.is_promise_kept


@pytest.mark.long
@pytest.mark.usefixtures("only_arrivals")
def test_somebody_who_gives_up_and_takes_another_along_is_caught(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Decoder.cancel

    def greedy_cancel(decoder: Decoder, request: Request) -> None:
        for other in [each for each in decoder.running if each is not request][:1]:
            cancel(decoder, other)
        cancel(decoder, request)

    monkeypatch.setattr(Decoder, "cancel", greedy_cancel)
    report = _prove(engine)
    assert report.counts.divergences > 0
    assert all(each.drafted_token_id is None for run in report.runs for each in run.divergences)
    assert not report.is_promise_kept


@pytest.mark.long
@pytest.mark.usefixtures("only_arrivals")
def test_answers_that_are_given_up_are_compared_as_far_as_they_went(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong token that only those emit who will give up."""
    given_up: set[Request] = set()
    cancel = Decoder.cancel

    def lying_cancel(decoder: Decoder, request: Request) -> None:
        cancel(decoder, request)
        if request.num_output_tokens:
            request.token_ids[-1] += 1
            given_up.add(request)

    monkeypatch.setattr(Decoder, "cancel", lying_cancel)
    report = _prove(engine)
    assert 0 < report.counts.divergences <= len(given_up)
