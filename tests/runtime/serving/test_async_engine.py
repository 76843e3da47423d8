"""The engine for event loops: every answer is what it would be alone, and who leaves holds nobody up."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge import AsyncEngine
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig, ServingConfig
from reader_edge_runtime.answer import GenerationChunk, GenerationResult
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import BusyError, CapacityError, ConfigError, PromptError
from reader_edge_runtime.serving.worker import Worker

GREEDY = GenerationConfig(max_tokens=40, ignores_eos=True)
LONG = replace(GREEDY, max_tokens=400)
LIMIT_S = 60  # that no test comes near; a stuck one fails


def test_what_is_no_engine_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match="engine is None, but must be an Engine"):
        AsyncEngine(nothing)


@pytest.mark.parametrize("priority", ["high", None, 1.5, float("nan"), True])
def test_a_priority_that_is_no_whole_number_is_refused(served: AsyncEngine, priority: Any) -> None:
    with pytest.raises(ConfigError, match=r"priority is .*, but must be a whole number"):
        served.stream("# tar", GREEDY, priority)


def test_a_stream_that_is_given_up_as_it_starts_ends(served: AsyncEngine) -> None:
    async def ask() -> None:
        stream = served.stream("# tar", LONG)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.give_up()
        await first
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        while served.num_running or served.num_waiting:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))


def test_two_tasks_do_not_read_one_stream_at_once(served: AsyncEngine) -> None:
    async def ask() -> None:
        stream = served.stream("# tar", GREEDY)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="Another task waits for this stream"):
            await anext(stream)
        chunks = [await first, *[chunk async for chunk in stream]]
        assert sum(len(chunk.token_ids) for chunk in chunks) == GREEDY.max_tokens

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))


def mixed_requests(texts: list[str], num: int) -> list[tuple[str, GenerationConfig]]:
    """Prompts of mixed lengths, some with a common beginning, and configs of every kind."""
    chosen = np.random.default_rng(7)
    requests = []
    for number in range(num):
        prompt = texts[number % 6][: int(chosen.choice([10, 60, 200, 600]))]
        sampling = SamplingConfig(
            temperature=chosen.choice([0.0, 0.0, 0.7, 1.2]),
            top_p=chosen.choice([1.0, 0.9]),
            seed=number,
            repetition_penalty=chosen.choice([1.0, 1.0, 1.2]),
        )
        max_tokens = int(chosen.integers(1, 41))
        requests.append(
            (prompt, GenerationConfig(max_tokens=max_tokens, sampling=sampling, is_drafted=number % 5 != 0))
        )
    return requests


@pytest.mark.long
def test_many_at_once_with_arrivals_and_cancels_get_the_tokens_they_would_get_alone(
    engine: Engine, served: AsyncEngine, held_out_texts: list[str]
) -> None:
    requests = mixed_requests(held_out_texts, 48)
    chosen = np.random.default_rng(3)
    delays = [float(chosen.random()) * 2 for _ in requests]
    num_wanted = [int(chosen.integers(1, 5)) if number % 4 == 3 else 1000 for number in range(len(requests))]

    async def ask(number: int) -> list[GenerationChunk]:
        await asyncio.sleep(delays[number])
        chunks: list[GenerationChunk] = []
        async for chunk in served.stream(*requests[number]):
            chunks.append(chunk)
            if len(chunks) == num_wanted[number]:
                break
        return chunks

    async def ask_all() -> list[list[GenerationChunk]]:
        return await asyncio.wait_for(asyncio.gather(*map(ask, range(len(requests)))), LIMIT_S)

    answers = asyncio.run(ask_all())
    asyncio.run(served.close())
    engine.forget()
    for request, chunks in zip(requests, answers, strict=True):
        alone = engine.generate(*request)
        token_ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
        text = "".join(chunk.text for chunk in chunks)
        if chunks[-1].finish_reason is None:
            assert token_ids == alone.token_ids[: len(token_ids)]
            assert alone.text.startswith(text)
        else:
            assert GenerationResult.of_chunks(chunks).token_ids == alone.token_ids
            assert (text, chunks[-1].finish_reason) == (alone.text, alone.finish_reason)


def steps_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[Request]]:
    """Who owned a slot, step by step."""
    steps: list[list[Request]] = []
    step = engine.decoder.step

    def watched() -> list[Request]:
        steps.append(list(engine.decoder.running))
        return step()

    monkeypatch.setattr(engine.decoder, "step", watched)
    return steps


def test_tokens_go_out_before_prompts_are_scored(
    engine: Engine, served: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def note(owner: type, name: str) -> None:
        done = getattr(owner, name)

        def noted(self: object) -> object:
            events.append(name)
            return done(self)

        monkeypatch.setattr(owner, name, noted)

    note(Decoder, "_advance")
    note(Decoder, "_score_prompts")
    note(Worker, "_hand_out")
    asyncio.run(served.generate("tar", GREEDY))
    assert events.count("_advance") > 1
    order = ["_advance", "_hand_out", "_score_prompts", "_hand_out"]
    for number, event in enumerate(events):
        if event == "_advance":
            seen = events[number : number + 4]  # the answer may be there before its last step has ended
            assert seen == order[: max(2, len(seen))]


@pytest.mark.parametrize("way", ["break", "cancelled task", "aclose"])
def test_who_leaves_frees_the_slot(
    engine: Engine, served: AsyncEngine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    steps = steps_of(engine, monkeypatch)

    async def leave() -> None:
        read = asyncio.Event()

        async def reader() -> None:
            stream = served.stream("# curl", LONG)
            async for _ in stream:
                read.set()
                if way == "break":
                    break
                if way == "aclose":
                    await stream.aclose()

        task = asyncio.create_task(reader())
        await read.wait()
        if way == "cancelled task":
            task.cancel()
        await asyncio.wait([task])
        num_steps = len(steps)
        assert (await served.generate("# tar", GREEDY)).token_ids
        # One step may have begun in the very moment.
        assert all(
            request.config.max_tokens == GREEDY.max_tokens for owners in steps[num_steps + 1 :] for request in owners
        )
        assert any(
            request.config.max_tokens == GREEDY.max_tokens for owners in steps[num_steps + 1 :] for request in owners
        )

    asyncio.run(asyncio.wait_for(leave(), LIMIT_S))


def test_more_than_may_wait_are_refused_at_once(engine: Engine) -> None:
    served = AsyncEngine(engine, ServingConfig(max_waiting=2))

    async def ask() -> None:
        with engine.working():  # so that nobody's answer ends meanwhile
            tasks = [asyncio.create_task(served.generate(f"# {number}", GREEDY)) for number in range(10)]
            while served.num_waiting < 10:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.01)
            with pytest.raises(BusyError, match=r"^10 requests run or wait already: try again later\.$"):
                await served.generate("# tar", GREEDY)
        assert {answer.finish_reason for answer in await asyncio.gather(*tasks)} == {"length"}
        assert (await served.generate("# tar", GREEDY)).finish_reason == "length"

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))
    asyncio.run(served.close())
    assert served.num_running == served.num_waiting == 0


def test_requests_that_others_ask_of_the_same_engine_are_not_counted(engine: Engine, served: AsyncEngine) -> None:
    with engine.working() as decoder:
        request = decoder.submit([1, 2, 3], GREEDY)
        decoder.step()
        assert decoder.running == [request]
        assert served.num_running == served.num_waiting == 0
        decoder.cancel(request)


def test_what_cannot_be_answered_is_refused_before_anything_runs(demo_folder: Path) -> None:
    config = EngineConfig(is_calibrated=False, is_probed=False, max_kv_bytes=2_000_000)

    async def ask() -> None:
        engine = Engine.load(demo_folder, config)
        with pytest.raises(ConfigError, match="ServingConfig"):
            AsyncEngine(engine, 0.5)  # type: ignore[arg-type]
        async with AsyncEngine(engine) as served:
            with pytest.raises(PromptError, match="empty"):
                await served.generate("")
            with pytest.raises(ConfigError, match="GenerationConfig"):
                await anext(served.stream("# tar", 3))  # type: ignore[arg-type]
            with pytest.raises(CapacityError, match=r"^[^\n]+max_kv_bytes \(--kv-bytes\)\.$"):
                await served.generate("# tar", replace(GREEDY, max_tokens=900))
            assert len((await served.generate("# tar", GREEDY)).token_ids) == 40

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))


def test_several_threads_with_loops_of_their_own_share_the_engine(engine: Engine, served: AsyncEngine) -> None:
    prompts = ("# tar", "# git commit", "# curl")
    found: dict[str, GenerationResult] = {}

    def ask(prompt: str) -> None:
        found[prompt] = asyncio.run(served.generate(prompt, GREEDY))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    beside = engine.generate("# curl", GREEDY)  # the engine itself may be used on
    for thread in threads:
        thread.join()
    assert found["# curl"].token_ids == beside.token_ids
    assert {prompt: found[prompt].text for prompt in prompts} == {
        prompt: engine.generate(prompt, GREEDY).text for prompt in prompts
    }


def test_a_loop_that_ended_during_an_answer_holds_nobody_up(engine: Engine, served: AsyncEngine) -> None:
    kept = []

    async def begin() -> None:
        stream = served.stream("# curl", LONG)
        kept.append(stream)  # which is not left, nor read any further
        await anext(stream)

    asyncio.run(begin())
    assert asyncio.run(asyncio.wait_for(served.generate("# tar", GREEDY), LIMIT_S)).finish_reason == "length"
    asyncio.run(asyncio.wait_for(served.close(), LIMIT_S))
    assert not engine.decoder.running
