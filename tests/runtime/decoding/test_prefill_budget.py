"""Prompts scored beside running answers, a few chunks a step: nobody waits long, and no token changes."""

from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass
from tests.fake_target import make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference

CHUNK = 7
MANIFEST = make_manifest(6)
LONG = [1, 2, 3, 4, 5] * 20


def bounded_decoder(budget: int = CHUNK, max_batch: int = 4) -> Decoder:
    decoder = make_decoder(MANIFEST, RandomDrafter(6, 9, seed=1), max_batch, CHUNK)
    decoder.prefill_budget.limit = budget
    return decoder


def expected(request: Request) -> list[int]:
    return reference(MANIFEST, request.token_ids[: request.num_prompt_tokens], request.config)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    budget=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 60), min_size=2, max_size=10),
    max_batch=st.integers(1, 4),
)
def test_arrivals_and_cancels_change_no_token(seed: int, budget: int, lengths: list[int], max_batch: int) -> None:
    random = np.random.default_rng(seed)
    decoder = make_decoder(MANIFEST, RandomDrafter(6, 9, seed), max_batch, CHUNK)
    decoder.prefill_budget.limit = budget
    requests: list[Request] = []
    for length in lengths:
        sampling = SamplingConfig(temperature=float(random.choice([0.0, 0.9])), seed=seed)
        config = GenerationConfig(max_tokens=int(random.integers(1, 20)), sampling=sampling)
        start = requests[0].token_ids[: length // 2] if requests and random.random() < 0.5 else []
        prompt = [*start, *random.integers(6, size=length - len(start)).tolist()]
        requests.append(decoder.submit(prompt, config))
        for _ in range(int(random.integers(4))):
            decoder.step()
        if random.random() < 0.3:
            decoder.cancel(requests[int(random.integers(len(requests)))])
    while any(request.is_running for request in requests):
        decoder.step()
    for request in requests:
        assert request.error is None
        answer = expected(request)
        is_cut = request.finish_reason == "cancelled"
        assert request.output_token_ids == (answer[: request.num_output_tokens] if is_cut else answer)


def test_a_long_prompt_costs_running_answers_no_step() -> None:
    decoder = bounded_decoder()
    running = [decoder.submit([2, 1], GenerationConfig(max_tokens=200)) for _ in range(2)]
    decoder.step()
    late = decoder.submit(LONG, GenerationConfig(max_tokens=5))
    began = sum(request.num_output_tokens for request in running)
    while not late.num_output_tokens:
        before = [request.num_output_tokens for request in running]
        decoder.step()
        assert all(each.num_output_tokens > num for each, num in zip(running, before, strict=True) if each.is_running)
    num_each = (sum(request.num_output_tokens for request in running) - began) / len(running)
    assert abs(num_each - -(-len(LONG) // CHUNK)) <= 1  # a chunk for each token, drafted or not
    decoder.finish(late)
    assert late.output_token_ids == expected(late)


def test_prompts_are_scored_first_come_first_served_and_short_ones_share_a_step() -> None:
    decoder = bounded_decoder(budget=9)
    requests = [decoder.submit([length - 1] * length, GenerationConfig(max_tokens=50)) for length in (3, 4, 5, 6)]
    assert decoder.step() == requests[:3]  # 3 + 4 tokens leave some of the budget, 5 more use it up
    assert decoder.running == requests[:3]
    decoder.step()
    assert decoder.running == requests


def test_a_prompt_s_chunks_are_the_same_beside_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunks(num_others: int, budget: int) -> list[list[int]]:
        decoder = bounded_decoder(budget)
        passes: list[list[int]] = []
        forward = decoder.target.forward

        def watched(cache: Cache, wanted: Pass) -> ForwardResult:
            if wanted.first_slot == num_others and len(wanted.trees) == 1:
                passes.append(wanted.trees[0].token_ids)
            return forward(cache, wanted)

        monkeypatch.setattr(decoder.target, "forward", watched)
        for _ in range(num_others):
            decoder.submit([0, 0, 0], GenerationConfig(max_tokens=400))
            decoder.step()
        passes.clear()
        decoder.finish(decoder.submit(LONG, GenerationConfig(max_tokens=1)))
        return passes

    assert [token_id for chunk in chunks(0, 1) for token_id in chunk] == LONG
    assert chunks(0, 1) == chunks(2, 5) == chunks(3, 1000)


def test_a_prompt_that_is_given_up_midway_leaves_the_others_and_its_rows_right() -> None:
    decoder = bounded_decoder()
    other = decoder.submit([3, 3, 3], GenerationConfig(max_tokens=60))
    given_up = decoder.submit(LONG, GenerationConfig(max_tokens=5))
    for _ in range(4):
        decoder.step()
    assert given_up.is_running
    assert given_up.num_output_tokens == 0
    decoder.cancel(given_up)
    again = decoder.submit(LONG, GenerationConfig(max_tokens=5))
    decoder.finish(other, again)
    assert given_up.finish_reason == "cancelled"
    assert again.stats.num_reused_tokens > 0
    assert (other.output_token_ids, again.output_token_ids) == (expected(other), expected(again))


def test_an_answer_that_ends_beside_a_prompt_leaves_the_prompt_s_rows_right() -> None:
    decoder = bounded_decoder()
    short = [decoder.submit([number, 2], GenerationConfig(max_tokens=4 + number)) for number in range(3)]
    decoder.step()
    long = decoder.submit(LONG, GenerationConfig(max_tokens=30))
    decoder.finish(*short, long)
    for request in (*short, long):
        assert request.output_token_ids == expected(request)


@pytest.mark.parametrize("is_prompt_s", [True, False])
def test_a_failed_pass_ends_those_in_it_alone(is_prompt_s: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = bounded_decoder()
    other = decoder.submit([3, 3, 3], GenerationConfig(max_tokens=60))
    decoder.step()
    long = decoder.submit(LONG, GenerationConfig(max_tokens=5))
    decoder.step()
    forward = decoder.target.forward

    def failing(cache: Cache, wanted: Pass) -> ForwardResult:
        if (wanted.first_slot == 1) == is_prompt_s:
            raise ProviderError("Broken.")
        return forward(cache, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(decoder.target, "forward", failing)
        decoder.step()
    failed, left = (long, other) if is_prompt_s else (other, long)
    assert (failed.finish_reason, str(failed.error)) == ("error", "Broken.")
    decoder.finish(left)
    assert left.output_token_ids == expected(left)


def _interrupted(*_arguments: object) -> NoReturn:
    raise KeyboardInterrupt


def test_an_interrupt_during_a_prompt_cancels_all_that_own_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = bounded_decoder()
    other = decoder.submit([3, 3, 3], GenerationConfig(max_tokens=60))
    long = decoder.submit(LONG, GenerationConfig(max_tokens=5))
    decoder.step()

    with monkeypatch.context() as patch:
        patch.setattr(decoder.target, "forward", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.step()
    assert other.finish_reason == long.finish_reason == "cancelled"
    again = decoder.submit(LONG, GenerationConfig(max_tokens=5))
    decoder.finish(again)
    assert again.output_token_ids == expected(again)


def test_an_interrupt_while_a_request_gets_its_slot_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = bounded_decoder()
    admitted = decoder.submit([1, 2], GenerationConfig(max_tokens=5))
    behind = decoder.submit([3, 3, 3], GenerationConfig(max_tokens=5))

    with monkeypatch.context() as patch:
        patch.setattr(decoder.cache, "reserve", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.step()
    assert admitted.finish_reason == "cancelled"
    decoder.finish(behind)
    assert behind.output_token_ids == expected(behind)


def test_an_interrupt_after_an_answer_s_last_token_leaves_the_answer_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = bounded_decoder()
    request = decoder.submit([1, 2], GenerationConfig(max_tokens=1))

    monkeypatch.setattr(request.drafter, "observe", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    assert (request.finish_reason, request.output_token_ids) == ("length", expected(request))


def test_a_slot_that_memory_is_short_for_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = bounded_decoder()
    other = decoder.submit([3, 3, 3], GenerationConfig(max_tokens=60))
    decoder.step()
    refused = decoder.submit([1, 2], GenerationConfig(max_tokens=5))
    reserve = decoder.cache.reserve

    def short(num_slots: int, capacity: int) -> None:
        if num_slots > 1:
            raise ConfigError("No memory.")
        reserve(num_slots, capacity)

    with monkeypatch.context() as patch:
        patch.setattr(decoder.cache, "reserve", short)
        assert decoder.step() == [other, refused]
    assert (refused.finish_reason, str(refused.error)) == ("error", "No memory.")
    decoder.finish(other)
    assert other.output_token_ids == expected(other)
