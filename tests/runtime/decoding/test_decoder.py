"""The decoder against a target without weights: drafting never changes a token, the cache is always right."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.sampler import Sampler
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_hints import DraftHints
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts, RemoteTree, TextCheck
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.stats import STEP_PARTS
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, RandomRequest, decode, make_decoder, reference


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    vocab_size=st.integers(2, 6),
    num_nodes=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    penalties=st.sampled_from([(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (1.0, 0.4, 0.0), (1.0, 0.0, -0.7), (1.1, -0.2, 1.5)]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    max_tokens=st.integers(1, 40),
)
def test_random_trees_in_ragged_batches_change_no_token(
    seed: int,
    vocab_size: int,
    num_nodes: int,
    temperature: float,
    penalties: tuple[float, float, float],
    lengths: list[int],
    max_tokens: int,
) -> None:
    manifest = make_manifest(vocab_size, max_context=64)
    random = np.random.default_rng(seed)
    prompts = [random.integers(vocab_size, size=n).tolist() for n in lengths]
    repetition, frequency, presence = penalties
    sampling = SamplingConfig(
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        temperature=temperature,
        seed=seed,
    )
    configs = [GenerationConfig(max_tokens=max_tokens + i, sampling=sampling) for i in range(len(prompts))]
    decoder = make_decoder(manifest, RandomDrafter(vocab_size, num_nodes, seed))
    wanted = [reference(manifest, *each) for each in zip(prompts, configs, strict=True)]
    assert decode(decoder, prompts, configs) == wanted
    # A second round meets warm slots, and must not notice.
    assert decode(decoder, prompts[::-1], configs[::-1]) == wanted[::-1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_retrieval_drafts_change_no_token_and_are_accepted(temperature: float) -> None:
    manifest = make_manifest(8)
    decoder = make_decoder(manifest, RetrievalDrafter(DraftConfig()).wait())
    config = GenerationConfig(max_tokens=200, sampling=SamplingConfig(temperature=temperature, seed=3))
    for prompt in ([1, 2, 3], [4, 5, 6, 7]):
        request = decoder.submit(prompt, config)
        decoder.finish(request)
        assert request.output_token_ids == reference(manifest, prompt, config)
        assert request.stats.num_accepted_tokens > 0
        assert request.stats.num_accepted_tokens + request.stats.num_steps + 1 == request.stats.num_tokens
        assert sum(request.stats.accepted_by_source.values()) == request.stats.num_accepted_tokens
        assert sum(request.stats.accepted_by_depth.values()) == request.stats.num_accepted_tokens


def test_a_step_s_parts_are_all_of_it() -> None:
    decoder = make_decoder(make_manifest(8), RetrievalDrafter(DraftConfig()).wait())
    request = decoder.submit([1, 2, 3], GenerationConfig(max_tokens=50))
    decoder.finish(request)
    parts = [getattr(request.stats, part) for part in STEP_PARTS]
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(request.stats.decode_s)


class EndlessSampler(Sampler):
    """Says one token whatever the logits are."""

    def peek(self, logits: npt.NDArray[np.float32], position: int) -> int:
        return 5


def test_a_sampler_of_the_caller_s_decides_what_is_accepted() -> None:
    decoder = make_decoder(make_manifest(8), RetrievalDrafter(DraftConfig()).wait())
    request = decoder.submit(
        [1, 2, 3], GenerationConfig(max_tokens=40), sampler=EndlessSampler(SamplingConfig(), 8, ())
    )
    decoder.finish(request)
    assert request.output_token_ids == [5] * 40
    assert request.stats.num_steps < 20


def test_a_skipped_prefill_is_reused_like_any_prefix() -> None:
    decoder = make_decoder(make_manifest(8), RandomDrafter(8, 1, 0))
    text = [1, 2, 3, 4, 5, 6, 7] * 60
    decoder.skip_prefill(text)
    assert decoder.cache.lengths == [len(text)]
    assert isinstance(decoder.cache, HostCache)
    assert (decoder.cache.slab[:, 0, :, : len(text)] != 0).all()  # pages of their own, not the shared one of zeros
    request = decoder.submit([8 - 1, *text], GenerationConfig(max_tokens=1))
    decoder.step()
    assert request.stats.num_reused_tokens == 0
    decoder.skip_prefill(text)
    request = decoder.submit([*text, 0], GenerationConfig(max_tokens=1))
    with pytest.raises(AssertionError, match="rows out of place"):  # the made-up rows are what the pass sees
        decoder.finish(request)
    assert request.stats.num_reused_tokens == len(text)


def test_fewer_passes_than_tokens_when_text_repeats() -> None:
    manifest = make_manifest(8)
    target = FakeTarget(manifest, order=1)  # a function of one token soon runs in a circle
    decoder = Decoder(target, RetrievalDrafter(DraftConfig()).wait(), EngineConfig())
    decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=100)])
    assert target.num_passes < 40


@pytest.mark.parametrize(("is_native", "pasts"), [(True, [40, 10]), (False, [40, 40])])
def test_texts_of_a_batch_are_planned_as_what_is_read_of_them(
    is_native: bool, pasts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own past, or all with the longest."""
    monkeypatch.setattr(FakeTarget, "is_native", is_native)
    decoder = make_decoder(make_manifest(8), RandomDrafter(8, 4, 0))
    planned: list[list[int]] = []

    def learn(widths: list[int], pasts: list[int], seconds: float) -> None:
        planned.append(pasts)

    monkeypatch.setattr(decoder.planner.times, "learn", learn)
    requests = [decoder.submit([1] * length, GenerationConfig(max_tokens=3)) for length in (40, 10)]
    decoder.finish(*requests)
    assert pasts in planned


def test_a_drafter_that_is_not_ready_is_not_called_nor_blamed() -> None:
    class Slow(RandomDrafter):
        is_ready = False

        def _tree(self, request: RandomRequest, max_nodes: int, max_depth: int) -> DraftTree:
            raise AssertionError("a draft was requested")

    manifest = make_manifest(8)
    decoder = make_decoder(manifest, Slow(8, 5, seed=1))
    request = decoder.submit([1, 2], GenerationConfig(max_tokens=12))
    decoder.finish(request)
    assert request.output_token_ids == reference(manifest, [1, 2], request.config)
    assert request.stats.num_wasted_drafts == request.stats.num_backoff_steps == 0
    assert request.stats.num_unready_steps == request.stats.num_steps == 11


VOCAB_SIZE = 6
KINDS = {
    "attention": (FakeTarget, make_manifest(VOCAB_SIZE)),
    "states": (FakeHybridTarget, hybrid_manifest(VOCAB_SIZE)),
}


def random_tree(random: np.random.Generator, root: int) -> DraftTree:
    tree = DraftTree.root(root)
    for _ in range(random.integers(6)):
        parent, token_id = int(random.integers(len(tree))), int(random.integers(VOCAB_SIZE))
        if tree.child(parent, token_id) < 0:
            tree.add(token_id, parent, "device")
    return tree


def act(random: np.random.Generator, request: Request) -> None:
    """What a request's device may do between two steps: leave, come back, draft, or nothing."""
    device, text = request.remote, request.token_ids
    if device is None or not request.is_running:
        return
    if random.random() < 0.1:
        device.hold()
    elif random.random() < 0.3:
        device.go_on()
    if random.random() < 0.5:
        device.leave(RemoteTree(len(text), random_tree(random, text[-1]), TextCheck(text).value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_waiting_of_any_request_for_any_time_changes_no_token(kind: str, seed: int) -> None:
    make_target, manifest = KINDS[kind]
    random = np.random.default_rng(seed)
    target = make_target(manifest)
    decoder = Decoder(target, RandomDrafter(VOCAB_SIZE, 5, seed), EngineConfig(max_batch=3, prefill_chunk=4))
    planned: list[tuple[list[int], GenerationConfig, RemoteDrafts | None]] = []
    for number in range(7):
        prompt = random.integers(VOCAB_SIZE, size=random.integers(1, 20)).tolist()
        sampling = SamplingConfig(temperature=0.8 * (number % 2), seed=number)
        device = None if number == 6 else RemoteDrafts(is_lockstep=number % 3 != 0)
        planned.append((prompt, GenerationConfig(max_tokens=25, sampling=sampling), device))
    requests = [
        Request(prompt, config, manifest, hints=DraftHints(remote=device)) for prompt, config, device in planned
    ]
    for request in requests:
        decoder.enqueue(request)
    num_parked = 0
    for _ in range(5000):
        for request in requests:
            act(random, request)
        decoder.step()
        num_parked = max(num_parked, len(decoder.scheduler.parked))
        if not any(request.is_running for request in requests):
            break
    assert num_parked > 1
    assert not decoder.running
    for request, (prompt, config, _) in zip(requests, planned, strict=True):
        assert request.error is None
        assert request.output_token_ids == reference(manifest, prompt, config, target)
