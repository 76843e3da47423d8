"""Decoding with recurrent layers: every node's state is that of its text, and prompts go on from places."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.session import FORMAT, load_session, save_session
from reader_edge_runtime.drafting.drafter import Drafter, NoDrafter
from reader_edge_runtime.errors import CapacityError, SessionError
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.random_drafter import RandomDrafter, decode, reference

VOCAB_SIZE = 4
MANIFEST = hybrid_manifest(VOCAB_SIZE, max_context=2048)
TARGET = FakeHybridTarget(MANIFEST)
CONFIG = GenerationConfig(max_tokens=30)
FINGERPRINT = bytes(32)
STATE_BYTES = 8


def make_decoder(
    drafter: Drafter | None = None, max_batch: int = 4, chunk: int = 7, max_kv_bytes: int = 0, margin: float = 0.0
) -> Decoder:
    config = EngineConfig(max_batch=max_batch, prefill_chunk=chunk, max_kv_bytes=max_kv_bytes)
    drafter = drafter or RandomDrafter(VOCAB_SIZE, 12, seed=1)
    return Decoder(FakeHybridTarget(MANIFEST), drafter, config, near_tie_margin=margin)


def text_of(seed: int, length: int) -> list[int]:
    return list(map(int, np.random.default_rng(seed).integers(VOCAB_SIZE, size=length)))


def answer(decoder: Decoder, prompt: Sequence[int], config: GenerationConfig = CONFIG) -> Request:
    """A request that has ended, with the answer that it must have."""
    request = decoder.submit(prompt, config)
    decoder.finish(request)
    assert request.output_token_ids == expected(prompt, config)
    return request


def expected(prompt: Sequence[int], config: GenerationConfig = CONFIG) -> list[int]:
    return reference(MANIFEST, prompt, config, TARGET)


def num_reused(decoder: Decoder, prompt: Sequence[int]) -> int:
    return answer(decoder, prompt).stats.num_reused_tokens


@pytest.mark.parametrize("margin", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_random_trees_in_ragged_batches_change_no_token(seed: int, margin: float) -> None:
    """With a margin many choices come from passes of their own, which the near-tie guard asks for."""
    rng = np.random.default_rng(seed)
    prompts = [text_of(seed * 10 + i, int(rng.integers(1, 40))) for i in range(5)]
    sampling = SamplingConfig(temperature=float(seed % 2), seed=seed)
    configs = [GenerationConfig(max_tokens=int(rng.integers(1, 60)), sampling=sampling) for _ in prompts]
    decoder = make_decoder(RandomDrafter(VOCAB_SIZE, 16, seed), chunk=5 + seed, margin=margin)
    wanted = [expected(*each) for each in zip(prompts, configs, strict=True)]
    assert decode(decoder, prompts, configs) == wanted
    assert decode(decoder, prompts[::-1], configs[::-1]) == wanted[::-1]


def test_drafts_are_accepted_and_plain_steps_follow() -> None:
    stats = answer(make_decoder(), text_of(0, 9), GenerationConfig(max_tokens=300)).stats
    assert stats.num_accepted_tokens > 50
    assert stats.num_steps > 50


def test_a_prompt_that_comes_again_scores_its_last_token_alone() -> None:
    decoder, prompt = make_decoder(), text_of(1, 50)
    assert num_reused(decoder, prompt) == 0
    assert num_reused(decoder, prompt) == 49
    assert num_reused(decoder, prompt) == 49
    decoder = make_decoder(NoDrafter())
    decoder.skip_prefill(text_of(22, 100))
    assert decoder.cache.usable(0, 100) == 100


def test_next_turns_reuse_what_they_share() -> None:
    decoder, prompt = make_decoder(chunk=16), text_of(34, 50)
    first = answer(decoder, prompt)
    assert num_reused(decoder, [*prompt[:46], *first.output_token_ids, 1, 2]) >= 46
    decoder, text = make_decoder(), text_of(2, 20)
    for length in (0, 49, 99, 149):
        request = answer(decoder, text)
        assert request.stats.num_reused_tokens == length
        text = [*request.token_ids[:-1], *text_of(length, 21)]
        text = text[: len(request.token_ids) - 1 + 21]
    decoder = make_decoder()
    turn = answer(decoder, text_of(3, 20)).token_ids[:-1]
    answer(decoder, [*turn, *text_of(4, 20)])
    assert num_reused(decoder, [*turn, *text_of(5, 20)]) >= len(turn)  # the last one was edited


@pytest.mark.long
def test_prompts_go_on_from_places_where_they_part_or_on_the_way() -> None:
    decoder, system = make_decoder(), text_of(6, 100)
    assert num_reused(decoder, [*system, 0, *text_of(7, 9)]) == 0
    assert num_reused(decoder, [*system, 1, *text_of(8, 9)]) == 0
    assert num_reused(decoder, [*system, 2, *text_of(9, 9)]) == 100
    assert num_reused(decoder, [*system, 3, *text_of(10, 9)]) == 100
    decoder, text = make_decoder(chunk=100), text_of(11, 1500)
    answer(decoder, text)
    assert num_reused(decoder, [*text[:1150], *text_of(12, 5)]) == 1100
    assert num_reused(decoder, [*text[:800], *text_of(13, 5)]) == 600
    assert num_reused(decoder, [*text[:300], *text_of(14, 5)]) == 0


def test_a_prefix_of_an_answer_that_still_runs_is_copied_from_its_places() -> None:
    decoder, prompt = make_decoder(), text_of(15, 40)
    first = decoder.submit(prompt, GenerationConfig(max_tokens=100))
    for _ in range(4):
        decoder.step()
    second = decoder.submit([*prompt, 1, 2, 3], CONFIG)
    decoder.finish(first, second)
    assert second.stats.num_reused_tokens == 40
    assert first.output_token_ids == expected(prompt, GenerationConfig(max_tokens=100))
    assert second.output_token_ids == expected([*prompt, 1, 2, 3])


@pytest.mark.parametrize("method", ["commit", "end_pass"])
def test_an_interrupt_between_pass_and_commit_leaves_places_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, prompts = make_decoder(), [text_of(16, 30), text_of(17, 12)]
    requests = [decoder.submit(prompt, GenerationConfig(max_tokens=100)) for prompt in prompts]
    for _ in range(3):
        decoder.step()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder.cache, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    monkeypatch.undo()
    assert [request.finish_reason for request in requests] == ["cancelled"] * 2
    for prompt, request in zip(prompts, requests, strict=True):
        assert num_reused(decoder, request.token_ids) == len(prompt)


def test_an_interrupted_prompt_goes_on_from_a_place_or_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, prompt = make_decoder(chunk=300), text_of(18, 900)
    decoder.submit(prompt, CONFIG)
    commit, num_commits = decoder.cache.commit, 0

    def interrupted(slot: int, path: Sequence[int]) -> None:
        nonlocal num_commits
        num_commits += 1
        if num_commits == 3:
            raise KeyboardInterrupt
        commit(slot, path)

    monkeypatch.setattr(decoder.cache, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    monkeypatch.undo()
    assert num_reused(decoder, prompt) == 600


def test_a_request_that_fails_during_a_step_ends_alone() -> None:
    decoder = make_decoder()
    prompts = [text_of(seed, 10) for seed in (19, 20, 21)]
    requests = [decoder.submit(prompt, CONFIG) for prompt in prompts]

    def watch(request: Request, row: np.ndarray) -> None:
        if request is requests[1] and request.num_output_tokens == 5:
            raise ValueError("no more")

    decoder.on_logits = watch
    with pytest.raises(ValueError, match="no more"):
        decoder.finish(*requests)
    decoder.on_logits = None
    for index in (0, 2):
        assert requests[index].output_token_ids == expected(prompts[index])
    assert num_reused(decoder, requests[1].token_ids) == 10


@pytest.mark.parametrize("seed", range(4))
def test_arrivals_departures_and_cancellations_change_no_answer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    decoder = make_decoder(RandomDrafter(VOCAB_SIZE, 9, seed), max_batch=3)
    requests: list[Request] = []
    shared = text_of(seed, 300)
    for number in range(14):
        prompt = [*shared[: int(rng.integers(300))], *text_of(number, int(rng.integers(1, 30)))]
        requests.append(decoder.submit(prompt, GenerationConfig(max_tokens=int(rng.integers(1, 50)))))
        for _ in range(int(rng.integers(6))):
            decoder.step()
        if rng.random() < 0.3:
            decoder.cancel(requests[int(rng.integers(len(requests)))])
    decoder.finish(*requests)
    for request in requests:
        answered = expected(request.token_ids[: request.num_prompt_tokens], request.config)
        num_tokens = request.num_output_tokens
        assert request.output_token_ids == answered[:num_tokens]
        assert num_tokens == len(answered) or request.finish_reason == "cancelled"
    assert sum(request.stats.num_reused_tokens for request in requests) > 0


def test_memory_stays_within_its_bound_and_places_give_way() -> None:
    row_bytes, slot_bytes = MANIFEST.kv_row_bytes, STATE_BYTES + 8 * 8
    max_bytes = 2 * 4096 * 8 + 6 * slot_bytes + 3 * 8 * MAX_WIDTH  # capsules of the longest path
    decoder = make_decoder(max_batch=3, max_kv_bytes=max_bytes)
    assert row_bytes == 16
    prompts = [text_of(seed, 60) for seed in range(23, 29)]
    requests = [decoder.submit(prompt, CONFIG) for prompt in prompts]
    while any(request.is_running for request in requests):
        decoder.step()
        assert decoder.cache.num_bytes <= max_bytes
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output_token_ids == expected(prompt)
    with pytest.raises(CapacityError, match="max_kv_bytes"):
        make_decoder(max_kv_bytes=4096).submit(text_of(1, 1000), CONFIG)


def test_a_session_goes_on_as_staying_would_have_also_in_place_of_other_texts(tmp_path: Path) -> None:
    decoder = make_decoder()
    requests = [decoder.submit(text_of(seed, 40), CONFIG) for seed in (30, 31)]
    decoder.finish(*requests)
    texts = [request.token_ids for request in requests]
    save_session(decoder, tmp_path / "kept", FINGERPRINT, [])
    other = make_decoder()
    load_session(other, tmp_path / "kept", FINGERPRINT)
    for each in (decoder, other):
        assert num_reused(each, [*texts[0][:-1], 1, 2]) == len(texts[0]) - 1
        assert num_reused(each, texts[1][:40]) == 39
        assert num_reused(each, texts[0][:40]) == 39
    decoder = make_decoder()
    text = answer(decoder, text_of(30, 40)).token_ids
    save_session(decoder, tmp_path / "kept", FINGERPRINT, [])
    for seed in (31, 32):
        answer(decoder, text_of(seed, 40))
    load_session(decoder, tmp_path / "kept", FINGERPRINT)
    assert num_reused(decoder, [*text[:-1], 1, 2]) == len(text) - 1


def test_a_session_saved_during_an_answer_has_it_as_far_as_it_came(tmp_path: Path) -> None:
    decoder = make_decoder()
    request = decoder.submit(text_of(32, 25), CONFIG)
    for _ in range(4):
        decoder.step()
    save_session(decoder, tmp_path / "running", FINGERPRINT, [])
    other = make_decoder()
    load_session(other, tmp_path / "running", FINGERPRINT)
    assert num_reused(other, [*request.token_ids, 1]) == len(request.token_ids) - 1
    decoder.cancel(request)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("places/0", None),
        ("places/0", np.zeros(0, np.int32)),
        ("places/0", np.zeros(17, np.int32)),
        ("places/0", np.array([-1, 0, 0], np.int32)),
        ("places/0", np.array([0, 0, 69], np.int32)),
        ("places/0", np.array([0, 0, 1 << 30], np.int32)),
        ("places/0", np.array([0.0, 1.0])),
        ("states/0/0/0", None),
        ("states/0/0/0", np.zeros((1, 3), np.float32)),
        ("states/0/0/0", np.zeros((1, 2), np.float16)),
        ("states/0/0/0", np.full((1, 2), np.nan, np.float32)),
        ("pending/0/0/0", np.zeros((), np.float32)),
        ("pending/0/0/0", np.zeros((0, 4, 2), np.float32)),
        ("pending/0/0/0", np.zeros((1, 1, 3), np.float32)),
        ("pending/0/0/0", np.zeros((1, 500, 2), np.float32)),
        ("pending/0/0/0", np.full((1, 1, 2), np.inf, np.float32)),
        ("rows/0", np.zeros((2, 1, 3, 2), np.float32)),
    ],
)
def test_states_that_no_pass_could_have_left_are_refused(name: str, array: np.ndarray | None, tmp_path: Path) -> None:
    decoder = make_decoder()
    answer(decoder, text_of(33, 40))
    path = tmp_path / "kept"
    save_session(decoder, path, FINGERPRINT, [])
    arrays = FORMAT.read(path, FINGERPRINT)
    assert name in arrays
    arrays = {each: kept for each, kept in arrays.items() if each != name}
    FORMAT.write(path, FINGERPRINT, arrays if array is None else {**arrays, name: array})
    other = make_decoder()
    with pytest.raises(SessionError, match="no sound session"):
        load_session(other, path, FINGERPRINT)
    assert num_reused(other, text_of(33, 40)) == 0
