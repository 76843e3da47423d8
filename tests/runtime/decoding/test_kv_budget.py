"""A bound on the KV cache: it is never passed, nobody waits for ever, and no token changes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.kv_budget import _readable
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.session import load_session, save_session
from reader_edge_runtime.drafting.drafter import NoDrafter
from reader_edge_runtime.errors import CapacityError, SessionError
from reader_edge_runtime.execution.onnxruntime.host import host_cache
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import HAS_PAGES
from reader_edge_runtime.execution.rows.rows_target import RowsCache
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH
from reader_edge_runtime.package.layer import Layer
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, RightDrafter, reference

# A row has a page for its key and one for its value, or a part of them where pages are larger.
MANIFEST = replace(make_manifest(6), head_dim=1024)


def num_bytes(*lengths: int) -> int:
    """What slots of so many rows take."""
    cache = HostCache(MANIFEST, 1, 1)
    cache.reserve_addresses(1)
    return cache.num_bytes_of(lengths, max(lengths))


def bounded_decoder(max_bytes: int, max_batch: int = 4) -> Decoder:
    config = EngineConfig(max_batch=max_batch, prefill_chunk=7, max_kv_bytes=max_bytes)
    return Decoder(FakeTarget(MANIFEST), RandomDrafter(6, 9, seed=1), config)


def expected(request: Request) -> list[int]:
    return reference(MANIFEST, request.token_ids[: request.num_prompt_tokens], request.config)


class RowsTarget(FakeTarget):
    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return RowsCache(self.manifest, num_slots, capacity)


SEVERAL_HEADS = (Layer.attention(1, 2), Layer.attention(3, 64))
WIDE_STATES = (Layer.attention(1, 2), Layer.recurrent({"delta": (2,), "conv": (40, 3)}, {"delta": 2, "conv": 50}))
TARGETS: dict[str, Callable[[], FakeTarget]] = {
    "pages": lambda: FakeTarget(MANIFEST),
    "several heads": lambda: FakeTarget(replace(make_manifest(6), num_layers=2, layers=SEVERAL_HEADS)),
    "fp16": lambda: FakeTarget(replace(MANIFEST, kv_dtype="float16")),
    "int8": lambda: FakeTarget(replace(MANIFEST, max_context=127, kv_dtype="int8")),  # where it keeps positions
    "rows": lambda: RowsTarget(MANIFEST),
    "hybrid": lambda: FakeHybridTarget(hybrid_manifest(6)),
    "wide hybrid": lambda: FakeHybridTarget(replace(hybrid_manifest(6), layers=WIDE_STATES)),
}


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("kind", TARGETS)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    share=st.floats(0.2, 3),
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8),
    budget=st.none() | st.integers(1, 30),
)
def test_in_caches_of_all_kinds_what_was_taken_is_answered_within_the_bound(
    kind: str, is_dense: bool, seed: int, share: float, sizes: list[tuple[int, int]], budget: int | None
) -> None:
    """share: of what the first request may take by itself."""
    with pytest.MonkeyPatch.context() as patch:
        if is_dense:
            patch.setattr(host_cache, "HAS_PAGES", False)
        random, target = np.random.default_rng(seed), TARGETS[kind]()
        alone = target.new_cache(1, 1)
        alone.max_pending = MAX_WIDTH
        alone.reserve_addresses(4)
        num_rows = min(sum(sizes[0]) + MAX_WIDTH, target.manifest.max_context)
        max_bytes = int(share * alone.num_bytes_of([num_rows], num_rows))
        config = EngineConfig(max_batch=4, prefill_chunk=7, max_kv_bytes=max_bytes)
        decoder = Decoder(target, RightDrafter(target, 60, seed), config)
        decoder.prefill_budget.limit = budget
        taken: list[Request] = []
        for length, max_tokens in sizes:
            start = taken[-1].token_ids[: length // 2] if taken and random.random() < 0.5 else []
            prompt = [*start, *random.integers(6, size=length - len(start)).tolist()]
            with suppress(CapacityError):
                taken.append(decoder.submit(prompt, GenerationConfig(max_tokens=max_tokens)))
            decoder.step()
            assert not taken or decoder.cache.num_bytes <= max_bytes
        assert taken or share < 1
        for _ in range(sum(map(sum, sizes))):  # each step gives each that runs a token
            decoder.step()
            assert not taken or decoder.cache.num_bytes <= max_bytes
        for request in taken:
            prompt = request.token_ids[: request.num_prompt_tokens]
            assert request.output_token_ids == reference(target.manifest, prompt, request.config, target)


def test_a_tight_bound_narrows_the_drafts_of_recurrent_layers_rather_than_refuse_requests() -> None:
    target = FakeHybridTarget(replace(hybrid_manifest(6), layers=WIDE_STATES))
    alone = target.new_cache(1, 1)
    alone.reserve_addresses(4)
    alone.max_pending = MAX_WIDTH
    tight = alone.num_bytes_of([40 + MAX_WIDTH], 512) - 1
    wide, narrow = (
        Decoder(target, RightDrafter(target, 60, 1), EngineConfig(max_batch=4, max_kv_bytes=max_bytes))
        for max_bytes in (100 * tight, tight)
    )
    assert (wide.kv_budget.max_nodes, narrow.kv_budget.max_nodes) == (MAX_WIDTH, 8)
    for decoder in (wide, narrow):
        requests = [decoder.submit([number] * 20, GenerationConfig(max_tokens=20)) for number in range(3)]
        while any(request.is_running for request in requests):
            decoder.step()
            assert decoder.cache.num_bytes <= decoder.config.max_kv_bytes
        assert max(max(request.stats.steps_by_width) for request in requests) <= decoder.kv_budget.max_nodes
        for request in requests:
            prompt = request.token_ids[:20]
            assert request.output_token_ids == reference(target.manifest, prompt, request.config, target)


def test_what_waits_is_refused_in_a_sentence_once_it_fits_no_more() -> None:
    """Where the bound, or what a text takes, has changed since it was taken."""
    decoder = bounded_decoder(num_bytes(60 + MAX_WIDTH, 60 + MAX_WIDTH))
    first = decoder.submit([1] * 40, GenerationConfig(max_tokens=20))
    decoder.step()
    long, short = (decoder.submit([2] * 40, GenerationConfig(max_tokens=number)) for number in (40, 1))
    decoder.kv_budget._max_bytes = num_bytes(62 + MAX_WIDTH)
    with pytest.raises(CapacityError, match=r"^[^\n]+max_kv_bytes \(--kv-bytes\)\.$"):
        decoder.finish(first, long, short)
    decoder.finish(first, short)
    for request in (first, short):
        assert request.output_token_ids == expected(request)


def test_a_session_counts_an_accepted_path_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "empty", np.zeros)  # the fake target never writes what a session must have as numbers
    target = FakeHybridTarget(replace(hybrid_manifest(6), layers=WIDE_STATES))
    drafted = Decoder(target, RightDrafter(target, 60, seed=1), EngineConfig())
    request = drafted.submit([1, 2, 3], GenerationConfig(max_tokens=200))
    while drafted.cache.num_pending(0) < 20:
        drafted.step()
    save_session(drafted, tmp_path / "kept", bytes(32), [])
    text, room = list(request.token_ids), target.new_cache(1, 1)
    room.reserve_addresses(1)
    without = room.num_bytes_of([len(text)], 512)
    room.max_pending = drafted.cache.num_pending(0)
    needed, later = room.num_bytes_of([len(text)], 512), GenerationConfig(max_tokens=20, is_drafted=False)
    narrow, wide = (
        Decoder(target, NoDrafter(), EngineConfig(max_batch=1, max_kv_bytes=max_bytes), Planner(1))
        for max_bytes in (needed - 1, needed + 20 * MANIFEST.kv_row_bytes)
    )
    with pytest.raises(SessionError, match="max_kv_bytes"):
        load_session(narrow, tmp_path / "kept", bytes(32))
    narrow.check(Request(text[:-1], replace(later, max_tokens=1), target.manifest))
    assert without < needed
    load_session(wide, tmp_path / "kept", bytes(32))
    going_on = wide.submit(text, later)
    wide.finish(going_on)
    assert wide.cache.num_bytes <= wide.config.max_kv_bytes
    assert going_on.stats.num_reused_tokens == len(text) - 1
    assert going_on.output_token_ids == reference(target.manifest, text, later, target)


@pytest.mark.skipif(not HAS_PAGES, reason="a dense cache takes as many times the longest as it has slots")
def test_a_long_request_beside_short_ones_takes_the_sum_and_gives_it_back() -> None:
    long, short = 300 + 20 + MAX_WIDTH, 10 + 20 + MAX_WIDTH
    max_bytes = num_bytes(long, short, short, short)
    decoder = bounded_decoder(max_bytes)
    requests = [decoder.submit([number] * (300 if number == 1 else 10), GenerationConfig(20)) for number in range(4)]
    decoder.step()
    assert decoder.running == requests
    decoder.finish(*requests)
    assert num_bytes(*[300 + 19, *[10 + 19] * 3]) >= decoder.cache.num_bytes > num_bytes(300)  # kept for reuse
    later = [decoder.submit([5, number], GenerationConfig(120)) for number in range(3)]
    while any(request.is_running for request in later):
        decoder.step()
        assert decoder.cache.num_bytes <= max_bytes
    assert max(decoder.cache.lengths) < 300  # the long text was in the way
    decoder.forget()
    assert decoder.cache.num_bytes == 0
    for request in (*requests, *later):
        assert request.output_token_ids == expected(request)


def test_requests_wait_until_they_fit_and_run_together_where_they_do() -> None:
    decoder = bounded_decoder(num_bytes(*[10 + 20 + MAX_WIDTH] * 2))
    short = [decoder.submit([1] * 10, GenerationConfig(max_tokens=20)) for _ in range(3)]
    decoder.step()
    assert decoder.running == short[:2]
    long = decoder.submit([2] * 60, GenerationConfig(max_tokens=20))
    later = decoder.submit([3] * 10, GenerationConfig(max_tokens=20))
    decoder.finish(*short)
    decoder.step()
    assert decoder.running == [long]  # both would be too many rows
    decoder.finish(long, later)
    pair = [decoder.submit([number] * 10, GenerationConfig(max_tokens=20)) for number in range(2)]
    decoder.step()
    assert decoder.running == pair  # a long request of before does not keep slots long
    decoder.finish(*pair)
    for request in (*short, long, later, *pair):
        assert request.output_token_ids == expected(request)


@pytest.mark.parametrize("max_rows", [0, 12 * (20 + 200 + MAX_WIDTH)])
def test_a_batch_that_grows_does_not_copy_all_for_each_that_joins(
    max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = bounded_decoder(max_rows and num_bytes(max_rows), max_batch=11)
    decoder.prefill_budget.limit = 1
    num_slots: set[int] = set()
    resize = HostCache._resize

    def noted(cache: HostCache, slots: int, capacity: int) -> None:
        num_slots.add(slots)
        resize(cache, slots, capacity)

    monkeypatch.setattr(HostCache, "_resize", noted)
    requests = [decoder.submit([number % 6] * 20, GenerationConfig(max_tokens=200)) for number in range(11)]
    while len(decoder.running) < 11:
        decoder.step()
    assert num_slots - {1} == {2, 4, 8, 11}
    for request in requests:
        assert request.output_token_ids == expected(request)[: request.num_output_tokens]


def test_slots_for_those_to_come_do_not_shorten_those_that_there_are() -> None:
    capacity = 200 + MAX_WIDTH
    decoder = bounded_decoder(num_bytes(*[capacity] * 3), max_batch=3)
    decoder.cache.resize(2, capacity)
    short = [decoder.submit([number] * 10, GenerationConfig(max_tokens=10)) for number in range(3)]
    decoder.kv_budget.make_room(short)
    assert (decoder.cache.num_slots, decoder.cache.capacity) == (3, capacity)


def test_a_request_that_can_never_fit_is_refused_at_once_in_one_sentence() -> None:
    decoder = bounded_decoder(num_bytes(100 + MAX_WIDTH))
    decoder.submit([1] * 50, GenerationConfig(max_tokens=50))
    with pytest.raises(CapacityError, match=r"^[^\n]+max_kv_bytes \(--kv-bytes\)\.$"):
        decoder.submit([1] * 50, GenerationConfig(max_tokens=51))
    assert len(decoder.waiting) == 1


@pytest.mark.parametrize(("num_bytes", "shown"), [(999, "999 bytes"), (2_500, "2.5 kB"), (3_000_000, "3 MB")])
def test_bytes_are_shown_in_a_unit_that_fits(num_bytes: int, shown: str) -> None:
    assert _readable(num_bytes) == shown
