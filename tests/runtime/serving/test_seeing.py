"""Engines of many answers that see images: who waits for a tower, and who does not."""

import asyncio
import gc
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import numpy as np
import pytest

from reader_edge_runtime import AsyncEngine, Engine, ServingConfig
from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import BusyError
from reader_edge_runtime.images.decode import GivenImage
from reader_edge_runtime.images.image_encoder import FeatureStore, SeenImage
from tests.fake_images import images_part
from tests.runtime.images.published_rules import RULES
from tests.runtime.images.test_prompt_reader import CAT, DOG, GREEDY, Seeing, question, shown
from tests.seeing_engine import CountedTower, picture, png, seeing_engine


@pytest.fixture
def seeing(tmp_path: Path) -> Seeing:
    return seeing_engine(tmp_path)


class WaitingTower(CountedTower):
    """Makes features once it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def features(self, inputs: Mapping[str, Array], may_run: object = None) -> Float32Array:
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        return super().features(inputs)


def held_requests(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> WeakSet[Request]:
    """Those of an engine's requests that anything holds, from now on."""
    held, check = WeakSet[Request](), engine.decoder.check

    def counted(request: Request) -> None:
        held.add(request)
        check(request)

    monkeypatch.setattr(engine.decoder, "check", counted)
    return held


def test_texts_and_known_images_do_not_wait_for_towers(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tower = seeing
    engine.generate(question(shown(CAT)), GREEDY)
    waiting, held = WaitingTower(), held_requests(engine, monkeypatch)
    monkeypatch.setattr(tower, "features", waiting.features)

    async def answer() -> None:
        async with AsyncEngine(engine) as served:
            seen = asyncio.create_task(served.generate(question(shown(DOG)), GREEDY))
            await asyncio.to_thread(waiting.has_begun.wait, 60)
            left = [asyncio.create_task(served.generate(question(shown(picture(n))), GREEDY)) for n in range(3, 60)]
            assert (await served.generate(question(), GREEDY)).token_ids
            for each in left:
                each.cancel()
            await asyncio.wait(left)
            left.clear()
            assert (await served.generate(question(), GREEDY)).token_ids
            gc.collect()
            assert len(held) <= 4  # images of requests that were left take no memory until a tower is free
            waiting.may_go_on.set()
            assert (await seen).token_ids

    asyncio.run(answer())
    assert waiting.num_passes <= 2  # nobody waits for the others any more


def test_of_a_request_that_was_left_no_further_image_is_seen(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, held = WaitingTower(), held_requests(seeing[0], monkeypatch)
    monkeypatch.setattr(seeing[1], "features", waiting.features)

    async def leave() -> None:
        async with AsyncEngine(seeing[0]) as served:
            many = question(*[shown(picture(n)) for n in range(20)])
            seen = asyncio.create_task(served.generate(many, GREEDY))
            await asyncio.to_thread(waiting.has_begun.wait, 60)
            seen.cancel()
            await asyncio.wait([seen])
            while any(request.is_running for request in list(held)):  # the engine's thread ends it
                await asyncio.sleep(0.001)
            waiting.may_go_on.set()
            assert (await served.generate(question(shown(DOG)), GREEDY)).token_ids

    asyncio.run(leave())
    assert waiting.num_passes <= 3


def test_an_idle_engine_keeps_no_request_that_was_left_while_a_tower_ran(
    seeing: Seeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tower = seeing
    waiting, held = WaitingTower(), held_requests(engine, monkeypatch)
    monkeypatch.setattr(tower, "features", waiting.features)

    async def answer() -> None:
        async with AsyncEngine(engine) as served, asyncio.timeout(20):
            left = {asyncio.create_task(served.generate(question(shown(DOG)), GREEDY))}
            await asyncio.to_thread(waiting.has_begun.wait, 60)
            assert len(held) == 1
            left.pop().cancel()
            while served.num_waiting:
                await asyncio.sleep(0.01)
            waiting.may_go_on.set()
            while held:
                await asyncio.sleep(0.01)
                gc.collect()

    asyncio.run(answer())


def test_a_full_engine_refuses_before_a_tower_runs_and_few_hold_features(
    seeing: Seeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tower = seeing
    waiting = WaitingTower()
    monkeypatch.setattr(tower, "features", waiting.features)
    seen = list[int]()

    async def answer() -> None:
        async with AsyncEngine(engine, ServingConfig(max_waiting=4)) as served:
            with engine.working():  # so that no request gets a slot
                images = [shown(png(picture(n))) for n in range(13)]
                waiting.may_go_on.set()
                requests = [asyncio.create_task(served.generate(question(each), GREEDY)) for each in images]
                done, left = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
                assert isinstance(done.pop().exception(), BusyError)
                while waiting.num_passes < 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                seen.append(waiting.num_passes)
            assert all([(await each).token_ids for each in left])

    asyncio.run(answer())
    assert seen == [2]
    assert waiting.num_passes == 12


def test_of_an_image_that_was_left_no_further_tile_is_seen() -> None:
    passes = list[int]()

    class TileTower(CountedTower):
        def features(self, inputs: Mapping[str, Array], may_run: object = None) -> Float32Array:
            passes.append(len(inputs["patches"]))
            return np.zeros((256, 2), np.float32)

    part = replace(images_part(), rules=RULES["lfm2_vl"])
    image = SeenImage(GivenImage(picture(1, 1500, 1000)), part, FeatureStore(TileTower))
    assert not image.load(lambda: len(passes) < 3)
    assert len(passes) == 3


def test_a_known_image_does_not_wait_for_another_s_tower() -> None:
    tower, part = WaitingTower(), images_part()
    store = FeatureStore(lambda: tower)
    cat, dog = (SeenImage(GivenImage(image), part, store) for image in (CAT, DOG))
    tower.may_go_on.set()
    known = cat.features
    tower.has_begun.clear()
    tower.may_go_on.clear()
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(lambda: dog.features)
        assert tower.has_begun.wait(60)
        assert SeenImage(GivenImage(CAT), part, store).features is known
        tower.may_go_on.set()
        assert len(made.result()) == 8
