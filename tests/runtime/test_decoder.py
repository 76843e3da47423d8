"""The decoder against a target without weights: drafting never changes a token, the cache is always right."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.sampling import Sampler
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, RetrievalDrafter
from reader_edge_runtime.errors import DraftError, PromptError
from reader_edge_runtime.execution.target_model import TargetModel
from reader_edge_runtime.package import Manifest
from reader_edge_runtime.stats import STEP_PARTS
from tests.fake_target import FakeTarget, make_manifest


class RandomDrafter:
    """Random trees over a small vocabulary: many are right by chance, at scattered nodes."""

    num_harvested_rows = 5
    is_ready = True

    def __init__(self, vocab_size: int, num_nodes: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._vocab_size = vocab_size
        self._num_nodes = num_nodes
        self._last = 0

    def begin(self, prompt_token_ids: Sequence[int]) -> "RandomDrafter":
        other = RandomDrafter(self._vocab_size, self._num_nodes, int(self._random.integers(1 << 30)))
        other._last = prompt_token_ids[-1]
        return other

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        tree = DraftTree.root(self._last)
        depths = [0]
        for _ in range(min(self._num_nodes, max_nodes) - 1):
            parent = int(self._random.integers(len(tree)))
            token_id = int(self._random.integers(self._vocab_size))
            if depths[parent] < max_depth and tree.child(parent, token_id) < 0:
                tree.add(token_id, parent, "random", value=float(self._random.random()) * tree.values[parent])
                depths.append(depths[parent] + 1)
        return tree

    def observe(self, tree: DraftTree, token_ids: Sequence[int]) -> None:
        self._last = token_ids[-1]

    def learn_successors(
        self,
        tree: DraftTree,
        rows: range,
        before_ids: list[int],
        top_ids: npt.NDArray[np.int64],
        top_logits: npt.NDArray[np.float32],
    ) -> None:
        assert top_ids.shape == top_logits.shape == (len(rows), min(4, self._vocab_size))
        assert len(before_ids) <= 2
        assert range(len(tree))[rows.start : rows.stop] == rows
        assert (np.diff(top_logits, axis=1) <= 0).all()

    def finish(self) -> None:
        self._last = -1

    def forget(self) -> None:
        return None


def make_decoder(manifest: Manifest, drafter: Drafter, max_batch: int = 4, chunk: int = 7) -> Decoder:
    target = cast(TargetModel, FakeTarget(manifest))
    return Decoder(target, drafter, EngineConfig(max_batch=max_batch, prefill_chunk=chunk))


def decode(decoder: Decoder, prompts: Sequence[Sequence[int]], configs: Sequence[GenerationConfig]) -> list[list[int]]:
    sequences = [decoder.submit(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
    while any(sequence.finish_reason is None for sequence in sequences):
        decoder.step()
    return [sequence.output_token_ids for sequence in sequences]


def reference(manifest: Manifest, prompt: Sequence[int], config: GenerationConfig) -> list[int]:
    """Greedy or sampled decoding written down directly, without trees or cache."""
    from reader_edge_runtime.decoding.sampling import Sampler

    target = FakeTarget(manifest)
    sampler = Sampler(config.sampling, manifest.vocab_size, prompt)
    token_ids = list(prompt)
    while len(token_ids) - len(prompt) < config.max_tokens and len(token_ids) < manifest.max_context:
        token_ids.append(sampler.choose(target.logits_after(token_ids), len(token_ids)))
    return token_ids[len(prompt) :]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    vocab_size=st.integers(2, 6),
    num_nodes=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    penalty=st.sampled_from([1.0, 1.3]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    max_tokens=st.integers(1, 40),
)
def test_random_trees_in_ragged_batches_change_no_token(
    seed: int,
    vocab_size: int,
    num_nodes: int,
    temperature: float,
    penalty: float,
    lengths: list[int],
    max_tokens: int,
) -> None:
    manifest = make_manifest(vocab_size, max_context=64)
    random = np.random.default_rng(seed)
    prompts = [random.integers(vocab_size, size=n).tolist() for n in lengths]
    sampling = SamplingConfig(temperature=temperature, repetition_penalty=penalty, seed=seed)
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
        sequence = decoder.submit(prompt, config)
        while sequence.finish_reason is None:
            decoder.step()
        assert sequence.output_token_ids == reference(manifest, prompt, config)
        assert sequence.stats.num_accepted_tokens > 0
        assert sequence.stats.num_accepted_tokens + sequence.stats.num_steps + 1 == sequence.stats.num_tokens
        assert sum(sequence.stats.accepted_by_source.values()) == sequence.stats.num_accepted_tokens
        assert sum(sequence.stats.accepted_by_depth.values()) == sequence.stats.num_accepted_tokens


def test_a_step_s_parts_are_all_of_it() -> None:
    decoder = make_decoder(make_manifest(8), RetrievalDrafter(DraftConfig()).wait())
    sequence = decoder.submit([1, 2, 3], GenerationConfig(max_tokens=50))
    while sequence.finish_reason is None:
        decoder.step()
    parts = [getattr(sequence.stats, part) for part in STEP_PARTS]
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(sequence.stats.decode_s)


class EndlessSampler(Sampler):
    """Says one token whatever the logits are."""

    def choose(self, logits: npt.NDArray[np.float32], position: int) -> int:
        return 5


def test_a_sampler_of_the_caller_s_decides_what_is_accepted() -> None:
    decoder = make_decoder(make_manifest(8), RetrievalDrafter(DraftConfig()).wait())
    sequence = decoder.submit(
        [1, 2, 3], GenerationConfig(max_tokens=40), sampler=EndlessSampler(SamplingConfig(), 8, ())
    )
    while sequence.finish_reason is None:
        decoder.step()
    assert sequence.output_token_ids == [5] * 40
    assert sequence.stats.num_steps < 20


def test_a_skipped_prefill_is_reused_like_any_prefix() -> None:
    decoder = make_decoder(make_manifest(8), RandomDrafter(8, 1, 0))
    text = [1, 2, 3, 4, 5, 6, 7] * 60
    decoder.skip_prefill(text)
    assert decoder.cache.lengths == [len(text)]
    assert (decoder.cache.slab[:, 0, :, : len(text)] != 0).all()  # pages of their own, not the shared one of zeros
    sequence = decoder.submit([8 - 1, *text], GenerationConfig(max_tokens=1))
    decoder.step()
    assert sequence.stats.num_reused_tokens == 0
    decoder.skip_prefill(text)
    sequence = decoder.submit([*text, 0], GenerationConfig(max_tokens=1))
    with pytest.raises(AssertionError, match="rows out of place"):  # the made-up rows are what the pass sees
        decoder.step()
    assert sequence.stats.num_reused_tokens == len(text)


def test_fewer_passes_than_tokens_when_text_repeats() -> None:
    manifest = make_manifest(8)
    target = FakeTarget(manifest, order=1)  # a function of one token soon runs in a circle
    decoder = Decoder(cast(TargetModel, target), RetrievalDrafter(DraftConfig()).wait(), EngineConfig())
    decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=100)])
    assert target.num_passes < 40


def test_a_drafter_that_is_not_ready_is_not_asked_and_not_held_in_vain() -> None:
    class Slow(RandomDrafter):
        is_ready = False

        def begin(self, prompt_token_ids: Sequence[int]) -> "Slow":
            return self

        def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
            raise AssertionError("asked for a draft")

    manifest = make_manifest(8)
    decoder = make_decoder(manifest, Slow(8, 5, seed=1))
    sequence = decoder.submit([1, 2], GenerationConfig(max_tokens=12))
    while sequence.finish_reason is None:
        decoder.step()
    assert sequence.output_token_ids == reference(manifest, [1, 2], sequence.config)
    assert sequence.stats.num_vain_drafts == sequence.stats.num_rested_steps == 0


def test_shared_prefix_is_reused_and_the_answer_is_the_same() -> None:
    manifest = make_manifest(16)
    decoder = make_decoder(manifest, RetrievalDrafter(DraftConfig()).wait())
    config = GenerationConfig(max_tokens=10)
    first = list(range(16)) * 3
    decode(decoder, [first], [config])
    second = [*first[:40], 1, 1, 1]
    sequence = decoder.submit(second, config)
    while sequence.finish_reason is None:
        decoder.step()
    assert sequence.stats.num_reused_tokens == 40
    assert sequence.output_token_ids == reference(manifest, second, config)


def test_cancelled_sequence_leaves_the_others_and_its_prefix_right() -> None:
    manifest = make_manifest(6)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    config = GenerationConfig(max_tokens=30)
    prompts = [[1, 2, 3], [4, 5], [3, 3, 3, 3]]
    sequences = [decoder.submit(prompt, config) for prompt in prompts]
    for _ in range(3):
        decoder.step()
    decoder.cancel(sequences[0])
    while any(sequence.finish_reason is None for sequence in sequences):
        decoder.step()
    assert sequences[0].finish_reason == "cancelled"
    for prompt, sequence in zip(prompts[1:], sequences[1:], strict=True):
        assert sequence.output_token_ids == reference(manifest, prompt, config)
    again = decoder.submit(sequences[0].token_ids, config)
    while again.finish_reason is None:
        decoder.step()
    assert again.stats.num_reused_tokens > 0
    assert again.output_token_ids == reference(manifest, sequences[0].token_ids, config)


def test_interrupted_step_cancels_and_later_requests_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = make_manifest(6)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    config = GenerationConfig(max_tokens=30)
    sequence = decoder.submit([1, 2, 3], config)
    decoder.step()
    commit = decoder.cache.commit

    def interrupted(slot: int, path: list[int]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder.cache, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    monkeypatch.setattr(decoder.cache, "commit", commit)
    assert sequence.finish_reason is not None
    assert decoder.running == []
    prompt = sequence.token_ids
    assert decode(decoder, [prompt], [config]) == [reference(manifest, prompt, config)]


def test_answer_ends_at_max_tokens_stop_token_and_context() -> None:
    manifest = make_manifest(6, max_context=40)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    answer = reference(manifest, [1, 2], GenerationConfig(max_tokens=100))
    sequence = decoder.submit([1, 2], GenerationConfig(max_tokens=100))
    while sequence.finish_reason is None:
        decoder.step()
    assert (sequence.finish_reason, len(sequence.token_ids)) == ("context", 40)
    stop = answer[5]
    sequence = decoder.submit([1, 2], GenerationConfig(max_tokens=100, stop_token_ids=(stop,)))
    while sequence.finish_reason is None:
        decoder.step()
    assert sequence.finish_reason == "stop"
    assert sequence.output_token_ids == answer[: answer.index(stop) + 1]
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=1)]) == [answer[:1]]


def test_end_token_of_the_model_ends_the_answer_unless_ignored() -> None:
    plain = make_manifest(6)
    answer = reference(plain, [1, 2], GenerationConfig(max_tokens=20))
    manifest = make_manifest(6, eos_token_ids=(answer[4],))
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    end = answer.index(answer[4]) + 1
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=20)]) == [answer[:end]]
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=20, ignores_eos=True)]) == [answer]


def test_hostile_drafter_raises_and_later_requests_are_right() -> None:
    manifest = make_manifest(6)

    class Hostile(RandomDrafter):
        def begin(self, prompt_token_ids: Sequence[int]) -> "Hostile":
            other = Hostile(6, 4, 0)
            other._last = prompt_token_ids[-1]
            return other

        def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
            return DraftTree([self._last, 6000], [-1, 0], ["", "hostile"], [1.0, 0.5])

    decoder = make_decoder(manifest, Hostile(6, 4, 0))
    with pytest.raises(DraftError, match="6000"):
        decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=5)])
    config = GenerationConfig(max_tokens=5, is_drafted=False)
    assert decode(decoder, [[1, 2]], [config]) == [reference(manifest, [1, 2], config)]


@pytest.mark.parametrize("prompt", [[], [99], [-1], list(range(6)) * 100])
def test_bad_prompt_is_refused_in_one_sentence(prompt: list[int]) -> None:
    decoder = make_decoder(make_manifest(6), RandomDrafter(6, 4, seed=0))
    with pytest.raises(PromptError, match=r"^[^\n]+\.$"):
        decoder.submit(prompt, GenerationConfig())
    assert not decoder.waiting


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree([], [], [], []),
        DraftTree([0, 1], [-1], ["", ""], [1, 1]),
        DraftTree([0, 1], [-1, 0], ["", ""], [1]),
        DraftTree([0, 99], [-1, 0], ["", "x"], [1, 1]),
        DraftTree([0, 1], [-1, 1], ["", "x"], [1, 1]),
        DraftTree([0, 1, 1], [-1, 0, 0], ["", "x", "x"], [1, 1, 1]),
        DraftTree([0], [0], [""], [1]),
        DraftTree([3], [-1], [""], [1]),
        DraftTree.chain([0, 1, 2, 3, 4]),
    ],
)
def test_what_is_no_tree_of_known_tokens_is_refused(tree: DraftTree) -> None:
    with pytest.raises(DraftError):
        tree.check(root_token_id=0, vocab_size=6, max_nodes=4)


@pytest.mark.parametrize("is_drafted", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_scored_answer_sums_the_log_probabilities_of_its_tokens(is_drafted: bool, temperature: float) -> None:
    target = FakeTarget(make_manifest())
    drafter = cast(Drafter, RandomDrafter(32, 8, seed=3))
    decoder = Decoder(cast(TargetModel, target), drafter, EngineConfig())
    sampling = SamplingConfig(temperature=temperature)
    config = GenerationConfig(max_tokens=20, sampling=sampling, is_drafted=is_drafted, is_scored=True)
    sequence = decoder.submit([3, 1, 4], config)
    while sequence.finish_reason is None:
        decoder.step()
    expected = 0.0
    for end in range(3, len(sequence.token_ids)):
        logits = target.logits_after(sequence.token_ids[:end])
        expected += float(logits[sequence.token_ids[end]] - np.log(np.exp(logits).sum()))
    assert sequence.stats.log_probability == pytest.approx(expected, rel=1e-5)
    assert sequence.stats.perplexity == pytest.approx(np.exp(-expected / 20), rel=1e-5)
