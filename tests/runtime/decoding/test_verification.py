"""The near-tie guard: noise between wide and single passes tips no choice."""

from dataclasses import replace

import numpy as np
import pytest

from reader_edge.verify.stress import StressDrafter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import near_tie_margin
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest

NOISE = 0.2
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7]]
PLAIN = GenerationConfig(max_tokens=120, is_drafted=False)


class NoisyTarget(FakeTarget):
    """Logits of wide passes differ from those of single-token passes, as on a GPU."""

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        exact = super().logits_of(cache, wanted)
        if len(wanted.trees) == 1 and len(wanted.trees[0]) == 1:
            return exact
        noise = np.random.default_rng(len(wanted.trees[0])).uniform(-NOISE, NOISE, exact.shape)
        return exact + noise.astype(np.float32)


TARGET = NoisyTarget(make_manifest())


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [1, 3])
def test_guarded_drafted_decoding_emits_what_plain_decoding_emits(batch_size: int) -> None:
    plain = _decode(0.0, 1, is_drafted=False)
    guarded = _decode(2 * NOISE, batch_size)
    assert [each.output_token_ids for each in guarded] == [each.output_token_ids for each in plain]
    assert sum(each.stats.num_redecided_tokens for each in guarded) > 0
    assert sum(each.stats.num_accepted_tokens for each in guarded) > 100, "drafting went on"
    for request in guarded:
        assert request.stats.num_decoded_tokens == request.num_output_tokens - 1


def test_control_without_the_guard_noise_tips_choices() -> None:
    plain, drafted = _decode(0.0, 1, is_drafted=False), _decode(0.0, 1)
    assert [each.output_token_ids for each in drafted] != [each.output_token_ids for each in plain]


def test_plain_and_sampled_decoding_decide_nothing_anew() -> None:
    assert not any(each.stats.num_redecided_tokens for each in _decode(2 * NOISE, 1, is_drafted=False))
    sampled = _decode(2 * NOISE, 1, sampling=SamplingConfig(temperature=0.5))
    assert not any(each.stats.num_redecided_tokens for each in sampled)


def test_the_margin_comes_from_the_measured_noise() -> None:
    assert near_tie_margin(WidthReport(16, 16, 0.0)) == 0
    assert near_tie_margin(WidthReport(16, 3, 0.01)) == pytest.approx(0.04)


def _decode(margin: float, batch_size: int, **changes: object) -> list[Request]:
    config = replace(GenerationConfig(max_tokens=120), **changes)  # type: ignore[arg-type]
    # The drafter knows the plain greedy answers, and hides them among wrong branches.
    known = _run(Decoder(TARGET, StressDrafter([], 32), EngineConfig(max_batch=1)), PLAIN)
    answers = [(tuple(each.token_ids[: each.num_prompt_tokens]), each.output_token_ids) for each in known]
    config_of_engine = EngineConfig(max_batch=batch_size)
    return _run(Decoder(TARGET, StressDrafter(answers, 32), config_of_engine, near_tie_margin=margin), config)


def _run(decoder: Decoder, config: GenerationConfig) -> list[Request]:
    requests = [decoder.submit(prompt, config) for prompt in PROMPTS]
    decoder.finish(*requests)
    return requests
