"""Microbatches over a pipeline: several passes in flight, and every answer what it is alone, come what may."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime import AsyncEngine, DraftConfig, Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.pipelined_decoder import PipelinedDecoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.draft_hints import DraftHints
from reader_edge_runtime.drafting.drafter import NoDrafter
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.in_flight import FinishedPass
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.stages_here import pipeline_here, stages_of

Split = Callable[[int], Path]
CONFIG = EngineConfig(threads=1)
PROMPTS = [[5, 6, 7, 8 + n] * (3 + 11 * n) for n in range(8)]
CONFIGS = [
    GenerationConfig(max_tokens=24, ignores_eos=True, sampling=SamplingConfig(temperature=0.8 * (n % 2), seed=n))
    for n in range(8)
]


@pytest.fixture(autouse=True)
def four_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineTarget, "num_microbatches", 4)
    monkeypatch.setattr(PipelineTarget, "num_stages", 4)


def pipelined(target: PipelineTarget, drafted: bool = True, config: EngineConfig = CONFIG) -> PipelinedDecoder:
    decoder = decoder_of(target, drafted, config)
    assert isinstance(decoder, PipelinedDecoder)
    return decoder


def decoder_of(target: Target, drafted: bool = True, config: EngineConfig = CONFIG) -> Decoder:
    drafter = RetrievalDrafter(DraftConfig()).wait() if drafted else NoDrafter()
    return make_decoder(target, drafter, replace(config, is_drafted=drafted))


def submitted(decoder: Decoder) -> list[Request]:
    return [decoder.submit(prompt, config) for prompt, config in zip(PROMPTS, CONFIGS, strict=True)]


def answers(decoder: Decoder) -> list[list[int]]:
    requests = submitted(decoder)
    decoder.finish(*requests)
    return [request.output_token_ids for request in requests]


@pytest.fixture(scope="module")
def expected(demo_folder: Path) -> list[list[int]]:
    """Of one box, which answers one request after the other, without drafts."""
    decoder = decoder_of(HostTarget.open(ModelPackage.open(demo_folder), 1), False)
    found = []
    for prompt, config in zip(PROMPTS, CONFIGS, strict=True):
        request = decoder.submit(prompt, config)
        decoder.finish(request)
        found.append(request.output_token_ids)
    return found


@pytest.mark.parametrize("drafted", [True, False], ids=["drafted", "plain"])
def test_answers_of_lanes_are_those_of_one_box(drafted: bool, split_demo: Split, expected: list[list[int]]) -> None:
    target = pipeline_here(split_demo(3))
    decoder = pipelined(target, drafted)
    assert answers(decoder) == expected
    assert (len(decoder.microbatches), stages_of(target).most_in_flight) == (4, 4)
    assert answers(decoder) == expected  # with what microbatches keep of past texts
    assert decoder.recorder.num_steps >= sum(each.recorder.num_steps for each in decoder.microbatches[1:]) > 0
    assert decoder.num_kv_bytes > decoder.cache.num_bytes


@pytest.mark.long
@pytest.mark.parametrize("lost_at", [[3], [9, 30], [40, 41, 60]], ids=str)
def test_a_loss_during_passes_is_one_loss(lost_at: list[int], split_demo: Split, expected: list[list[int]]) -> None:
    target = pipeline_here(split_demo(2), lost_at=lost_at)
    assert answers(pipelined(target)) == expected
    assert target.in_flight.epoch <= len(lost_at)


def test_stages_that_stay_lost_end_all_answers_with_one_wait(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2), lost_at=range(20, 10_000))
    following, waits = stages_of(target), []

    def stays_away(lost: Exception) -> None:
        waits.append(len(following.frames))
        raise lost

    following.come_back = stays_away  # type: ignore[method-assign]
    decoder = pipelined(target)
    requests = submitted(decoder)
    while any(request.is_running for request in requests):
        decoder.step()
    assert {str(request.error) for request in requests} == {"Stage 1 is gone."}
    assert len(set(waits)) == len(waits)  # those that were in flight together are noticed together
    assert len(waits) < len(requests)


def test_a_request_is_given_up_while_its_pass_is_under_way(split_demo: Split, expected: list[list[int]]) -> None:
    decoder = pipelined(pipeline_here(split_demo(2)))
    requests = submitted(decoder)
    for _ in range(3):
        decoder.step()
    for given_up in (requests[2], requests[7]):
        decoder.cancel(given_up)
        assert given_up.finish_reason == "cancelled"
    others = [request for request in requests if request not in (requests[2], requests[7])]
    decoder.finish(*others)
    assert [request.output_token_ids for request in others] == [expected[n] for n in (0, 1, 3, 4, 5, 6)]


def test_one_that_waits_for_a_lane_is_given_up(split_demo: Split) -> None:
    decoder = pipelined(pipeline_here(split_demo(2)), config=EngineConfig(threads=1, max_batch=2))
    requests = submitted(decoder)
    decoder.step()
    assert len(decoder.all_running) <= 2
    for request in requests:
        decoder.cancel(request)
    assert (decoder.step(), {request.finish_reason for request in requests}) == ([], {"cancelled"})


def test_one_whose_device_comes_back_goes_on_alone_in_its_lane(split_demo: Split, expected: list[list[int]]) -> None:
    decoder, device = pipelined(pipeline_here(split_demo(2)), False), RemoteDrafts()
    request = Request(PROMPTS[0], CONFIGS[0], decoder.target.manifest, hints=DraftHints(remote=device))
    decoder.enqueue(request)
    while not request.num_output_tokens:
        decoder.step()
    device.hold()
    decoder.step()
    assert decoder.step() == []
    device.go_on()
    for _ in range(200):
        decoder.step()
    assert request.output_token_ids == expected[0]


def test_those_of_lowest_priority_number_come_first(split_demo: Split) -> None:
    decoder = pipelined(pipeline_here(split_demo(2)), False, EngineConfig(threads=1, max_batch=1))
    requests = [Request(prompt, CONFIGS[0], decoder.target.manifest) for prompt in PROMPTS[:4]]
    for request, priority in zip(requests, (0, 2, 1, 1), strict=True):
        request.priority = priority
        decoder.enqueue(request)
    ended: list[Request] = []
    while len(ended) < 4:
        decoder.step()
        ended += [request for request in requests if not request.is_running and request not in ended]
    assert ended == [requests[n] for n in (0, 2, 3, 1)]


def test_an_interrupt_cancels_what_runs_and_the_lanes_go_on(split_demo: Split, expected: list[list[int]]) -> None:
    target = pipeline_here(split_demo(2))
    decoder, following = pipelined(target), stages_of(target)
    receive, failures = following.receive, iter([None] * 12 + [KeyboardInterrupt()])

    def interrupted() -> FinishedPass:
        if (failure := next(failures, None)) is not None:
            raise failure
        return receive()

    following.receive = interrupted  # type: ignore[method-assign]
    requests = submitted(decoder)
    with pytest.raises(KeyboardInterrupt):
        decoder.finish(*requests)
    assert {request.finish_reason for request in requests} == {"cancelled"}
    assert answers(decoder) == expected


def test_a_long_prompt_goes_where_its_beginning_is_known(split_demo: Split) -> None:
    decoder = pipelined(pipeline_here(split_demo(2)), False)
    text = list(range(5, 205))
    first, other = (decoder.submit(prompt, CONFIGS[0]) for prompt in (text, [9, 8, 7]))
    decoder.finish(first, other)
    first, again = (decoder.submit(prompt, CONFIGS[0]) for prompt in ([9, 8, 7, 6], [*text, 9]))
    decoder.finish(first, again)
    assert again.stats.num_reused_tokens == 200


def test_nothing_is_remembered_of_what_is_forgotten(split_demo: Split, expected: list[list[int]]) -> None:
    decoder = pipelined(pipeline_here(split_demo(2)))
    requests = submitted(decoder)
    for _ in range(4):
        decoder.step()
    decoder.forget()  # between passes
    decoder.finish(*requests)
    decoder.forget()
    assert [request.output_token_ids for request in requests] == expected
    assert all(not any(microbatch.cache.lengths) for microbatch in decoder.microbatches)


def test_more_lanes_than_stages_are_for_many_requests(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineTarget, "num_stages", 1)
    decoder = pipelined(pipeline_here(split_demo(2)), False)
    requests = submitted(decoder)[:4]
    for request in requests:
        decoder.cancel(request)
    decoder.step()
    assert [microbatch.num_requests for microbatch in decoder.microbatches] == [4]
    submitted(decoder)
    decoder.step()
    assert [microbatch.num_requests for microbatch in decoder.microbatches] == [4, 4]


def test_a_bound_on_the_cache_keeps_to_one(split_demo: Split) -> None:
    config = EngineConfig(threads=1, max_kv_bytes=1 << 30)
    assert not isinstance(decoder_of(pipeline_here(split_demo(2)), config=config), PipelinedDecoder)


def test_many_tasks_are_answered_over_microbatches(split_demo: Split, expected: list[list[int]]) -> None:
    target = pipeline_here(split_demo(2))
    package = ModelPackage.open(split_demo(2))
    engine = Engine(package, Tokenizer.open(package), pipelined(target))

    async def all_answers() -> list[list[int]]:
        async with AsyncEngine(engine) as serving:
            results = await asyncio.gather(*map(serving.generate, PROMPTS, CONFIGS))
        return [list(result.token_ids) for result in results]

    assert asyncio.run(all_answers()) == expected
    assert stages_of(target).most_in_flight == 4
