"""Log-probabilities of an answer's tokens: the same drafted and plain, and what the logits say."""

from typing import cast

import numpy as np
import pytest

from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.choosing.logprobs import token_logprob
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.drafting.drafter import Drafter
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter


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
