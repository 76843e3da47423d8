"""Requests that wait for devices: who waits takes no step, gives up what others need, and gets the same tokens."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from reader_edge_runtime import (
    AsyncEngine,
    DraftSources,
    Engine,
    EngineConfig,
    GenerationConfig,
    SamplingConfig,
    ServingConfig,
)
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting import remote_drafts
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts, RemoteTree, TextCheck
from reader_edge_runtime.drafting.sources.remote_source import RemoteSource
from reader_edge_runtime.errors import BusyError
from tests.conftest import ROOT

CONFIG = GenerationConfig(max_tokens=30, sampling=SamplingConfig(temperature=0.7, seed=5))
LIMIT_S = 15.0


@pytest.fixture(scope="module")
def small() -> Engine:
    """An engine of one slot, which takes hints."""
    config = EngineConfig(is_calibrated=False, max_batch=1)
    engine = Engine.load(ROOT / "models/demo/package", config, sources=DraftSources(extra=[RemoteSource()]))
    engine.decoder.drafter.wait()  # type: ignore[attr-defined]
    return engine


async def lockstep(
    engine: AsyncEngine, prompt: str, wanted: Sequence[int], pause: Callable[[RemoteDrafts, int], object] | None = None
) -> list[int]:
    """An answer to which a device drafts two tokens at a time, of which the second is wrong."""
    device, came = RemoteDrafts(is_lockstep=True), list[int]()
    text = engine.engine.encode_prompt(prompt)
    async for chunk in engine.stream(prompt, CONFIG, device=device):
        came += chunk.token_ids
        if chunk.finish_reason is not None:
            break
        if pause is not None:
            await pause(device, len(came))  # type: ignore[misc]
        now = [*text, *came]
        draft = DraftTree.chain([now[-1], *wanted[len(came) : len(came) + 1], 0])
        device.leave(RemoteTree(len(now), draft, TextCheck(now).value))
    return came


def run(engine: Engine, *answers: Callable[[AsyncEngine], object]) -> list[object]:
    async def all_of_them() -> list[object]:
        async with AsyncEngine(engine) as served:
            return list(await asyncio.gather(*(answer(served) for answer in answers)))  # type: ignore[call-overload]

    return asyncio.run(asyncio.wait_for(all_of_them(), LIMIT_S))


def test_a_silent_device_leaves_its_only_slot_to_others(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_drafts, "AWAY_S", 0.05)
    wanted = [list(small.generate(prompt, CONFIG).token_ids) for prompt in ("# tar", "# ls")]
    others_are_done = asyncio.Event()

    async def other(served: AsyncEngine) -> list[int]:
        await asyncio.sleep(0.1)
        found = await served.generate("# ls", CONFIG)
        others_are_done.set()
        return list(found.token_ids)

    async def pause(device: RemoteDrafts, num_tokens: int) -> None:
        if num_tokens > 3:
            await others_are_done.wait()

    found = run(small, lambda served: lockstep(served, "# tar", wanted[0], pause), other)
    assert found == wanted


def test_an_answer_that_is_held_waits_and_goes_on(small: Engine) -> None:
    wanted = list(small.generate("# tar", CONFIG).token_ids)
    num_held = 0

    async def pause(device: RemoteDrafts, num_tokens: int) -> None:
        nonlocal num_held
        if num_tokens in range(4, 12):
            device.hold()
            await asyncio.sleep(0.02)
            num_held += 1
            device.go_on()

    assert run(small, lambda served: lockstep(served, "# tar", wanted, pause)) == [wanted]
    assert num_held


def test_an_answer_that_is_held_can_be_given_up(small: Engine) -> None:
    async def give_up(served: AsyncEngine) -> int:
        device = RemoteDrafts()
        stream = served.stream("# tar", GenerationConfig(max_tokens=300), device=device)
        await anext(stream)
        device.hold()
        assert len((await served.generate("# ls", CONFIG)).token_ids) == 30  # in its slot
        assert len(small.decoder.scheduler.parked) == 1
        stream.give_up()
        while served.num_waiting + served.num_running:
            await asyncio.sleep(0.01)
        return len(small.decoder.scheduler.parked)

    assert run(small, give_up) == [0]


def test_an_answer_that_fails_while_it_is_held_raises(small: Engine) -> None:
    async def fail(served: AsyncEngine) -> int:
        device = RemoteDrafts()
        stream = served.stream("# tar", GenerationConfig(max_tokens=300), device=device)
        await anext(stream)
        device.hold()
        await served.generate("# ls", CONFIG)
        with small.working() as decoder:
            decoder.scheduler.parked[0].fail(ValueError("no"))
        device.go_on()
        with pytest.raises(ValueError, match="no"):
            async for _ in stream:
                pass
        await served.generate("# ls", CONFIG)
        return len(small.decoder.scheduler.parked)

    assert run(small, fail) == [0]


def test_a_prompt_whose_device_is_away_is_not_scored_until_that_is_back(small: Engine) -> None:
    wanted = small.generate("# tar", CONFIG).token_ids

    async def wait(served: AsyncEngine) -> tuple[int, ...]:
        device = RemoteDrafts()
        device.hold()
        stream = served.stream("# tar", CONFIG, device=device)
        first = asyncio.ensure_future(anext(stream))
        while not served.num_waiting:
            await asyncio.sleep(0.01)
        await served.generate("# ls", CONFIG)
        assert len(small.decoder.scheduler.parked) == 1
        assert not small.decoder.scheduler.waiting
        device.go_on()
        return (*(await first).token_ids, *[i async for chunk in stream for i in chunk.token_ids])

    assert run(small, wait) == [wanted]


@pytest.mark.parametrize("is_lockstep", [False, True])
def test_waiting_answers_take_no_places_of_others(
    small: Engine, monkeypatch: pytest.MonkeyPatch, is_lockstep: bool
) -> None:
    monkeypatch.setattr(remote_drafts, "AWAY_S", 0.05)
    wanted = small.generate("# ls", CONFIG).token_ids

    async def ask() -> tuple[int, ...]:
        async with AsyncEngine(small, ServingConfig(max_waiting=0)) as served:
            device = RemoteDrafts(is_lockstep)
            stream = served.stream("# tar", GenerationConfig(max_tokens=300), device=device)
            await anext(stream)
            with pytest.raises(BusyError, match="1 requests run or wait already"):
                await served.generate("# ls", CONFIG)
            if is_lockstep:  # no tree comes
                await asyncio.sleep(0.1)
            else:
                device.hold()
            found = await served.generate("# ls", CONFIG)
            stream.give_up()
            return found.token_ids

    assert asyncio.run(asyncio.wait_for(ask(), LIMIT_S)) == wanted


def test_hints_are_taken_and_weighed(small: Engine) -> None:
    wanted = small.generate("# tar", CONFIG).token_ids
    prompt = small.encode_prompt("# tar")
    small.forget()

    async def hinted(served: AsyncEngine) -> tuple[Sequence[int], int]:
        device, came = RemoteDrafts(), list[int]()
        device.leave(RemoteTree(len(prompt), DraftTree.chain([prompt[-1], *wanted])))
        async for chunk in served.stream("# tar", CONFIG, device=device):
            came += chunk.token_ids
            if chunk.stats is not None:
                return tuple(came), chunk.stats.accepted_by_source["device"]
        raise AssertionError

    [found] = run(small, hinted)
    assert isinstance(found, tuple)
    assert found[0] == wanted
    assert found[1] > 5


def test_a_plain_request_takes_no_trees(small: Engine) -> None:
    wanted = list(small.generate("# tar", CONFIG).token_ids)

    async def plain(served: AsyncEngine) -> int:
        device, came, num_steps = RemoteDrafts(is_lockstep=True), list[int](), 0
        text = small.encode_prompt("# tar")
        async for chunk in served.stream("# tar", replace(CONFIG, is_drafted=False), device=device):
            came += chunk.token_ids
            num_steps += 1
            now = [*text, *came]
            tree = DraftTree.chain([now[-1], *wanted[len(came) :]])
            device.leave(RemoteTree(len(now), tree, TextCheck(now).value))
            if chunk.finish_reason is not None:
                break
        assert came == wanted
        return num_steps

    assert run(small, plain) == [30]
