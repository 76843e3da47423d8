"""Log-probabilities of a prompt's and an answer's tokens: the target's own, drafted or not, in any chunks."""

from typing import cast

import numpy as np
import pytest

from reader_edge_runtime import Engine
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.sampling.sampler import TokenLogprob, token_logprob
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, reference


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_each_token_s_logprob_is_the_target_s_own_drafted_or_not(temperature: float) -> None:
    found = []
    for is_drafted in (False, True):
        target = FakeTarget(make_manifest(8))
        decoder = Decoder(target, cast(Drafter, RandomDrafter(8, 9, seed=3)), EngineConfig())
        sampling = SamplingConfig(temperature=temperature, logit_bias={3: 2.0}, seed=5)
        config = GenerationConfig(
            max_tokens=30,
            sampling=sampling,
            is_drafted=is_drafted,
            wants_logprobs=True,
            num_top_logprobs=3,
            is_scored=True,
        )
        request = decoder.submit([1, 2, 3], config)
        decoder.finish(request)
        assert (request.stats.num_accepted_tokens > 0) == is_drafted
        assert sum(each.logprob for each in request.logprobs) == pytest.approx(request.stats.log_probability, rel=1e-5)
        mean = np.mean([each.logprob for each in request.logprobs])
        assert request.stats.perplexity == pytest.approx(np.exp(-mean), rel=1e-5)
        for position, each in enumerate(request.logprobs):
            logits = target.logits_after(request.token_ids[: 3 + position]).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            assert each.logprob == pytest.approx(logprobs[request.token_ids[3 + position]], abs=1e-5)
            best = np.argsort(-logprobs, kind="stable")[:3]
            assert [token_id for token_id, _ in each.top] == best.tolist()
            assert [logprob for _, logprob in each.top] == pytest.approx(logprobs[best], abs=1e-5)
        found.append((request.output_token_ids, request.logprobs))
    assert found[0] == found[1]


def test_equal_tokens_come_by_id_and_no_more_than_there_are() -> None:
    logits = np.array([1, 3, 2, 3, 2, 2], np.float32)
    assert [token_id for token_id, _ in token_logprob(logits, 0, 4).top] == [1, 3, 2, 4]
    assert len(token_logprob(logits, 0, 100).top) == 6
    assert token_logprob(logits, 0, 0).top == ()


CONFIG = GenerationConfig(max_tokens=8, wants_prompt_logprobs=True, num_top_logprobs=3)


def wanted_logprobs(prompt: list[int], num_top: int = 3) -> list[TokenLogprob | None]:
    target = FakeTarget(make_manifest(16))
    rows = [token_logprob(target.logits_after(prompt[:i]), prompt[i], num_top) for i in range(1, len(prompt))]
    return [None, *rows]


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    return list(map(int, np.random.default_rng(seed).integers(16, size=num_tokens)))


@pytest.mark.parametrize("chunk", [1, 7, 0])
@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 65, 200])
def test_each_prompt_token_has_its_own_across_chunks(num_tokens: int, chunk: int) -> None:
    prompt = prompt_of(num_tokens)
    decoder = Decoder(
        FakeTarget(make_manifest(16)), cast(Drafter, RandomDrafter(16, 9, 3)), EngineConfig(prefill_chunk=chunk)
    )
    request = decoder.submit(prompt, CONFIG)
    decoder.finish(request)
    assert request.prompt_logprobs == wanted_logprobs(prompt)
    assert request.output_token_ids == reference(decoder.target.manifest, prompt, CONFIG)


def test_a_prefix_in_the_cache_or_of_a_running_answer_is_scored_again() -> None:
    decoder = Decoder(FakeTarget(make_manifest(16)), RetrievalDrafter(DraftConfig()).wait(), EngineConfig())
    prompt = prompt_of(80)
    first = decoder.submit(prompt, GenerationConfig(max_tokens=40))
    decoder.step()
    beside = decoder.submit(prompt, CONFIG)
    decoder.finish(first, beside)
    after = decoder.submit(prompt, CONFIG)
    decoder.finish(after)
    plain = decoder.submit(prompt, GenerationConfig(max_tokens=8))
    decoder.finish(plain)
    assert beside.prompt_logprobs == after.prompt_logprobs == wanted_logprobs(prompt)
    assert (beside.stats.num_reused_tokens, after.stats.num_reused_tokens) == (0, 0)
    assert plain.stats.num_reused_tokens == 79  # others go on reusing, also what such a request left
    assert plain.output_token_ids == after.output_token_ids == beside.output_token_ids == first.output_token_ids[:8]


class WidestRead(FakeTarget):
    """Remembers how many rows of logits were wanted of a pass at most."""

    num_rows = 0

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        if wanted.wants_logits:
            self.num_rows = max(self.num_rows, *map(len, wanted.rows))
        return super().forward(cache, wanted)


def test_the_logits_of_a_long_prompt_are_never_there_together() -> None:
    target = WidestRead(make_manifest(16, max_context=2048))
    decoder = Decoder(target, RetrievalDrafter(DraftConfig()).wait(), EngineConfig(prefill_chunk=1024))
    request = decoder.submit(prompt_of(1500), CONFIG)
    decoder.finish(request)
    assert len(request.prompt_logprobs) == 1500
    assert target.num_rows == 64


def test_requests_of_a_batch_get_their_own_and_others_none(engine: Engine) -> None:
    prompts = ["# tar\n\nThe command", "# git commit"]
    alone = [engine.generate(prompt, CONFIG) for prompt in prompts]
    for prompt, result in zip(prompts, alone, strict=True):
        token_ids = engine.encode_prompt(prompt)
        assert [each is None for each in result.prompt_logprobs] == [True] + [False] * (len(token_ids) - 1)
        assert all(each is None or len(each.top) == 3 for each in result.prompt_logprobs)
    without = GenerationConfig(max_tokens=8)
    together = engine.generate_batch([*prompts, prompts[0]], [CONFIG, CONFIG, without])
    assert [each.prompt_logprobs for each in together] == [each.prompt_logprobs for each in alone] + [()]
    assert together[2].token_ids == together[0].token_ids == alone[0].token_ids


def test_a_prompt_has_the_log_probabilities_of_an_answer_that_says_the_same_once_in_a_stream(engine: Engine) -> None:
    answer = engine.generate("# tar", GenerationConfig(max_tokens=20, wants_logprobs=True, num_top_logprobs=2))
    prompt = engine.encode_prompt("# tar")
    config = GenerationConfig(max_tokens=1, wants_prompt_logprobs=True, num_top_logprobs=2)
    again = engine.generate([*prompt, *answer.token_ids], config)
    assert again.prompt_logprobs[len(prompt) :] == answer.logprobs
    chunks = list(engine.stream("# tar", CONFIG))
    assert chunks[0].prompt_logprobs == engine.generate("# tar", CONFIG).prompt_logprobs != ()
    assert all(chunk.prompt_logprobs == () for chunk in chunks[1:])
