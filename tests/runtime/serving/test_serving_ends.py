"""What ends: a serving engine that is closed or let go, requests that fail, and who is harmed by none of it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from reader_edge import AsyncEngine
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.answer import Answer, GenerationChunk, GenerationResult
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import ClosedError, TokenizerError

GREEDY = GenerationConfig(max_tokens=40, ignores_eos=True)
LONG = replace(GREEDY, max_tokens=400)
LIMIT_S = 60  # that no test comes near; a stuck one fails


def test_closing_waits_for_answers_or_cancels_them_and_refuses_new_ones(engine: Engine) -> None:
    async def close(cancels: bool) -> GenerationResult:
        served = AsyncEngine(engine)
        task = asyncio.create_task(served.generate("# tar", LONG))
        while not served.num_running:
            await asyncio.sleep(0.01)
        await served.close(cancels)
        with pytest.raises(ClosedError, match="load it again"):
            await served.generate("# tar", GREEDY)
        await served.close()
        return await task

    assert asyncio.run(close(cancels=False)).finish_reason == "length"
    assert asyncio.run(close(cancels=True)).finish_reason == "cancelled"


def test_a_failing_request_harms_no_other(engine: Engine, served: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    emit = Request.emit

    def failing(request: Request, token_id: int) -> bool:
        if request.config.max_tokens == 39 and request.num_output_tokens == 9:
            raise ValueError("what a callback may do")
        return emit(request, token_id)

    monkeypatch.setattr(Request, "emit", failing)
    read: list[GenerationChunk] = []

    async def ask() -> GenerationResult:
        other = asyncio.create_task(served.generate("# tar", GREEDY))
        with pytest.raises(ValueError, match="callback"):
            await read_all(served.stream("# curl", replace(GREEDY, max_tokens=39)))
        return await other

    async def read_all(stream: AsyncIterator[GenerationChunk]) -> None:
        async for chunk in stream:
            read.append(chunk)

    other = asyncio.run(asyncio.wait_for(ask(), LIMIT_S))
    assert sum(len(chunk.token_ids) for chunk in read) == 9
    assert other.token_ids == engine.generate("# tar", GREEDY).token_ids


def test_a_failing_text_harms_no_other(engine: Engine, served: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Answer.take

    def failing(answer: Answer) -> GenerationChunk | None:
        if answer.request.config.max_tokens == 39 and answer.request.num_output_tokens >= 5:
            raise TokenizerError("The tokenizer cannot decode this.")
        return take(answer)

    monkeypatch.setattr(Answer, "take", failing)

    async def ask() -> GenerationResult:
        other = asyncio.create_task(served.generate("# tar", GREEDY))
        with pytest.raises(TokenizerError, match="cannot decode"):
            await served.generate("# curl", replace(GREEDY, max_tokens=39))
        return await other

    assert asyncio.run(asyncio.wait_for(ask(), LIMIT_S)).finish_reason == "length"
    assert not engine.decoder.running


def test_a_stream_tells_what_it_took_and_of_what_prompt(engine: Engine, served: AsyncEngine) -> None:
    async def ask() -> None:
        stream = served.stream("# tar", GREEDY)
        assert (stream.stats, stream.prompt_token_ids) == (None, [])
        chunks = [chunk async for chunk in stream]
        assert stream.prompt_token_ids == engine.encode_prompt("# tar")
        assert stream.stats is not None
        assert stream.stats.num_prompt_tokens == len(stream.prompt_token_ids)
        assert sum(len(chunk.token_ids) for chunk in chunks) == 40

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))


def test_later_requests_outlive_a_fault(engine: Engine, served: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine.decoder, "step", lambda: (_ for _ in ()).throw(RuntimeError("a bug")))
        with pytest.raises(RuntimeError, match="a bug"):
            asyncio.run(asyncio.wait_for(served.generate("# tar", GREEDY), LIMIT_S))
    assert asyncio.run(asyncio.wait_for(served.generate("# tar", GREEDY), LIMIT_S)).finish_reason == "length"


@pytest.mark.long
def test_an_engine_that_is_let_go_ends_its_thread_and_holds_nobody_up(engine: Engine) -> None:
    before = threading.active_count()
    served = AsyncEngine(engine)
    assert threading.active_count() == before + 1
    del served
    assert threading.active_count() == before
    several = [AsyncEngine(engine)]
    with engine.working():  # as where the garbage collector runs during a step
        several.clear()
    assert engine.generate("# tar", GREEDY).finish_reason == "length"
