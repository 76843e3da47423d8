"""Views: the text is what the mixture says, whatever is drafted; weight 0 is exact, weight 1 the view alone."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from reader_edge_lossy.views import Views
from reader_edge_lossy.views_decoder import retrieved
from reader_edge_lossy.views_target import ViewsTarget
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.sampler import Sampler
from reader_edge_runtime.decoding.slots import KeptText
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, NoDrafter
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.target import Pass, Target
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, chosen, decode, reference
from tests.wings.lossy.test_rules import OnlyOddAfterEven

VOCAB_SIZE = 8
MANIFEST = make_manifest(VOCAB_SIZE, max_context=1024)
TARGET = FakeTarget(MANIFEST, order=10_000)  # what it says hangs on all of a text
PROMPTS = [
    np.random.default_rng(seed).integers(VOCAB_SIZE, size=size).tolist() for seed, size in enumerate((300, 9, 181))
]
SAMPLINGS = [SamplingConfig(), SamplingConfig(temperature=1.0, seed=3), SamplingConfig(repetition_penalty=1.3)]


def views_decoder(strength: Views, drafter: Drafter | None = None, config: EngineConfig | None = None) -> Decoder:
    config = config or EngineConfig(max_batch=3, prefill_chunk=50, is_calibrated=False)
    return strength.decoder(Decoder(TARGET, drafter or NoDrafter(), config), None)


def config_of(
    strength: Views, num_tokens: int, sampling: SamplingConfig = SAMPLINGS[0], is_drafted: bool = True
) -> GenerationConfig:
    rule = strength.rule((), None)
    return GenerationConfig(num_tokens, sampling=sampling, acceptance=rule, is_drafted=is_drafted)


def mixed(strength: Views, prompt: Sequence[int], config: GenerationConfig) -> list[int]:
    """What the two views say together, written down directly."""
    view = retrieved(prompt, strength.context)
    sampler = Sampler(config.sampling or SamplingConfig(), VOCAB_SIZE, prompt)
    token_ids, w = list(prompt), np.float32(strength.weight)
    while len(token_ids) - len(prompt) < config.max_tokens:
        seen = view + token_ids[len(prompt) :]
        logits = (1 - w) * TARGET.logits_after(token_ids) + w * TARGET.logits_after(seen)
        token_ids.append(chosen(sampler, logits, len(token_ids)))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalised"])
def test_the_text_is_what_the_mixture_says_whatever_is_drafted(sampling: SamplingConfig) -> None:
    strength = Views(64, 0.5)
    expected = [mixed(strength, prompt, config_of(strength, 60, sampling)) for prompt in PROMPTS]
    for seed in range(3):
        decoder = views_decoder(strength, RandomDrafter(VOCAB_SIZE, 16, seed))
        configs = [config_of(strength, 60, sampling) for _ in PROMPTS]
        assert decode(decoder, PROMPTS, configs) == expected
        assert decode(decoder, PROMPTS[:1], [config_of(strength, 60, sampling)]) == expected[:1]  # rows are reused
    assert decode(decoder, PROMPTS[:1], [config_of(strength, 60, sampling, is_drafted=False)]) == expected[:1]


def test_weight_zero_is_exact_and_weight_one_is_the_retrieved_text_alone() -> None:
    for prompt in PROMPTS:
        exact, alone = Views(64, 0.0), Views(64, 1.0)
        drafter = RandomDrafter(VOCAB_SIZE, 16, seed=1)
        [answer] = decode(views_decoder(exact, drafter), [prompt], [config_of(exact, 50)])
        assert answer == reference(MANIFEST, prompt, GenerationConfig(50), TARGET)
        [answer] = decode(views_decoder(alone, drafter), [prompt], [config_of(alone, 50)])
        assert answer == reference(MANIFEST, retrieved(prompt, 64), GenerationConfig(50), TARGET)


def test_a_request_beside_one_of_the_same_prompt_copies_its_rows_and_reads_its_own_view() -> None:
    strength = Views(64, 0.7)
    decoder = views_decoder(strength, RandomDrafter(VOCAB_SIZE, 8, seed=5))
    first = decoder.submit(PROMPTS[0], config_of(strength, 40))
    while first.num_output_tokens < 9:
        decoder.step()
    second = decoder.submit(PROMPTS[0], config_of(strength, 40))
    decoder.finish(first, second)
    expected = mixed(strength, PROMPTS[0], config_of(strength, 40))
    assert first.output_token_ids == second.output_token_ids == expected
    assert second.stats.num_reused_tokens == len(PROMPTS[0]) - 1


def test_an_answer_that_lost_its_slot_reads_its_view_again() -> None:
    strength = Views(64, 0.5)
    decoder = views_decoder(strength)
    request = decoder.submit(PROMPTS[0], config_of(strength, 40, is_drafted=False))
    while request.num_output_tokens < 9:
        decoder.step()
    decoder.running.remove(request)
    decoder.slots.release(0, KeptText(request.token_ids))
    decoder.forget()
    decoder.waiting.append(request)
    decoder.finish(request)
    assert request.output_token_ids == mixed(strength, PROMPTS[0], config_of(strength, 40))


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "sampled"])
def test_the_meter_counts_what_the_whole_text_alone_would_not_have_had(sampling: SamplingConfig) -> None:
    strength, prompt = Views(64, 0.6), PROMPTS[0]
    decoder = views_decoder(strength, RandomDrafter(VOCAB_SIZE, 16, seed=4))
    request = decoder.submit(prompt, config_of(strength, 80, sampling))
    decoder.finish(request)
    sampler, text, nats = Sampler(sampling, VOCAB_SIZE, prompt), list(prompt), []
    for token_id in request.output_token_ids:
        logits = TARGET.logits_after(text)
        nats.append(float(logits[chosen(sampler, logits, len(text))] - logits[token_id]))
        text.append(token_id)
    report = request.acceptance.report(request.output_token_ids)
    assert report["rule"] == "views"
    assert report["figures"] == {"context": 64, "weight": 0.6}
    assert report["num_changed"] == sum(each != 0 for each in nats) > 20
    assert report["nats_per_token"] == pytest.approx(sum(nats) / 80, abs=1e-5)


def test_grammars_stop_tokens_and_scores_are_of_the_mixture() -> None:
    strength = Views(64, 0.5)

    def decoded(is_drafted: bool, **others: object) -> Request:
        decoder = views_decoder(strength, RandomDrafter(VOCAB_SIZE, 16, seed=6))
        config = replace(config_of(strength, 60, is_drafted=is_drafted), is_scored=True, **others)  # type: ignore[arg-type]
        request = decoder.submit(PROMPTS[0], config, constraint=OnlyOddAfterEven(VOCAB_SIZE))
        decoder.finish(request)
        return request

    plain, drafted = decoded(is_drafted=False), decoded(is_drafted=True)
    answer = drafted.output_token_ids
    assert answer == plain.output_token_ids
    assert drafted.stats.log_probability == pytest.approx(plain.stats.log_probability)
    assert all(b % 2 == 1 for a, b in pairwise(answer) if a % 2 == 0)
    stopped = decoded(is_drafted=True, stop_token_ids=(answer[20],))
    assert stopped.finish_reason == "stop"
    assert stopped.output_token_ids == answer[: answer.index(answer[20]) + 1]


def test_the_views_cache_counts_both_and_forgets_what_is_cut() -> None:
    target = ViewsTarget(TARGET, 0.5)
    cache = target.new_cache(1, 64)
    target.forward(cache, Pass(0, [DraftTree.chain([2, 0, 1, 6, 3])], [range(5)]))
    cache.commit(0, range(5))
    target.read_view(cache, 0, [3, 4])
    assert cache.both.lengths == [5, 2]
    assert cache.num_bytes == cache.num_bytes_of([5], 64) == cache.both.num_bytes
    cache.reserve_addresses(2)
    cache.reserve(2, 64)
    assert cache.copy(0, 1, 4) == 4
    cache.swap(0, 1)
    assert (cache.lengths, cache.both.lengths) == ([4, 5], [4, 0, 5, 2])
    assert cache.cut(1, 3) == 3
    assert (cache.lengths, cache.both.lengths, cache.has_view) == ([4, 3], [4, 0, 3, 0], [False, False])
    cache.fill(0, 9)
    cache.assume(1, 7)
    cache.trim(1)
    assert (cache.lengths, cache.both.lengths, cache.has_view) == ([9, 7], [9, 0, 7, 7], [False, True])


def test_a_decoder_behaves_as_if_a_text_were_there() -> None:
    strength = Views(64, 0.0)
    decoder = views_decoder(strength)
    decoder.skip_prefill(PROMPTS[1])
    request = decoder.submit(PROMPTS[1], config_of(strength, 1, is_drafted=False))
    decoder.step()
    assert request.stats.num_reused_tokens == len(PROMPTS[1]) - 1


class StatedTarget(FakeTarget):
    """Tells which slot each tree is in as its states."""

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        slots = np.arange(len(wanted.trees), dtype=np.float32)
        hidden, layers = np.zeros((len(slots), 1, 1), np.float32), np.zeros((2, len(slots), 1, 1), np.float32)
        hidden += slots[:, None, None]
        layers += slots[:, None, None]
        result = super().forward(cache, wanted)
        return result._replace(hidden_states=hidden, layer_states=layers)


def test_states_are_those_of_the_whole_text() -> None:
    target = ViewsTarget(StatedTarget(MANIFEST), 0.5).with_min_rows(2)
    target.release_memory()
    assert target.min_rows == 2
    cache = target.new_cache(2, 64)
    for slot in range(2):
        target.read_view(cache, slot, [1])
        cache.has_view[slot] = True
    roots = [DraftTree.root(2)] * 2
    result = target.forward(cache, Pass(0, roots, [range(1)] * 2, wants_hidden_states=True, wants_layer_states=True))
    assert result.hidden_states is not None
    assert result.layer_states is not None
    assert result.hidden_states.ravel().tolist() == [0.0, 2.0]
    assert result.layer_states.shape == (2, 2, 1, 1)
    assert result.layer_states[:, 1].ravel().tolist() == [2.0, 2.0]


def test_the_best_are_first_and_equals_by_id_also_of_few_tokens() -> None:
    few = FakeTarget(make_manifest(3))
    target = ViewsTarget(few, 0.5)
    cache = target.new_cache(1, 8)
    target.read_view(cache, 0, [])
    result = target.forward(cache, Pass(0, [DraftTree.root(1)], [range(1)]))
    assert result.logits is not None
    assert result.top_ids[0, 0].tolist() == np.argsort(-result.logits[0, 0]).tolist()


def test_passes_over_both_are_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = PassCost(1, (64,), (1, 2), np.array([[1.0, 1.5]]), 0.0)
    measured: list[Target] = []

    def measure(target: Target, threads: int, batch_size: int, on_progress: object) -> PassCost:
        measured.append(target)
        return cost

    monkeypatch.setattr("reader_edge_lossy.views.load_or_measure", measure)
    decoder = views_decoder(Views(64, 0.5), config=EngineConfig(is_calibrated=True))
    assert decoder.planner.times.is_measured
    assert measured == [decoder.target]
    assert decoder.target.pass_facts == ("fake", "two views")


def test_what_views_cannot_do_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="context is 63, but must be from 64"):
        Views(63)
    with pytest.raises(ConfigError, match=r"weight is 1\.1, but must be from 0 to 1"):
        Views(64, 1.1)
    made = Decoder(TARGET, NoDrafter(), EngineConfig())
    made.cache.has_all_rows = False
    with pytest.raises(ConfigError, match="Views take a model of attention alone, in one box: choose another rule"):
        Views().decoder(made, None)
