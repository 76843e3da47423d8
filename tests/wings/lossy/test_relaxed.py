"""Relaxed acceptance: its budget is a bound, ends are the model's, forms hold, and without strength it is exact."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from reader_edge_lossy.relaxed import Relaxed
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import ConfigError
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference
from tests.wings.lossy.odd_tokens import OnlyOddAfterEven

VOCAB_SIZE = 8
ENDS = (5,)
MANIFEST = make_manifest(VOCAB_SIZE, max_context=4096, eos_token_ids=ENDS)
TARGET = FakeTarget(MANIFEST)


def decoded(strength: Relaxed, num_tokens: int, seed: int = 0, constraint: OnlyOddAfterEven | None = None) -> Request:
    decoder = make_decoder(MANIFEST, RandomDrafter(VOCAB_SIZE, 16, seed))
    config = GenerationConfig(num_tokens, acceptance=strength.rule(ENDS, None), ignores_eos=True)
    request = decoder.submit([1, 2 + seed % 3], config, constraint=constraint)
    decoder.finish(request)
    return request


def deviation(request: Request) -> list[float]:
    """Of each token of an answer, ln p of the model's choice less its own, worked out again from the text."""
    nats, text = [], request.token_ids[: request.num_prompt_tokens]
    for token_id in request.output_token_ids:
        logits = TARGET.logits_after(text).astype(np.float64)
        nats.append(float(logits.max() - logits[token_id]))
        text.append(token_id)
    return nats


@pytest.mark.long
def test_no_answer_gives_up_more_than_its_budget_at_any_of_ten_thousand_steps() -> None:
    num_steps = num_changed = 0
    for seed, (gap, budget) in enumerate([(0.7, 0.02), (3.0, 0.1), (9.0, 0.5), (0.2, 9.0)] * 2):
        request = decoded(Relaxed(gap, budget), 2500, seed)
        nats = deviation(request)
        assert (np.cumsum(nats) <= budget * np.arange(1, len(nats) + 1) + 1e-5).all()
        assert max(nats) <= gap + 1e-6
        report = request.acceptance.report(request.output_token_ids)
        assert report["nats_per_token"] == pytest.approx(sum(nats) / len(nats), abs=1e-6)
        assert report["num_changed"] == sum(each > 0 for each in nats)
        num_steps += request.stats.num_steps
        num_changed += sum(each > 0 for each in nats)
    assert num_steps > 10_000
    assert num_changed > 1000


@pytest.mark.parametrize("strength", [Relaxed(0.0, 1.0), Relaxed(1.0, 0.0)])
def test_without_strength_the_tokens_are_those_of_exact_decoding(strength: Relaxed) -> None:
    request = decoded(strength, 300)
    assert request.output_token_ids == reference(MANIFEST, [1, 2], GenerationConfig(300))
    assert request.stats.num_accepted_tokens > 20
    report = request.acceptance.report(request.output_token_ids)
    assert (report["num_changed"], report["nats_per_token"]) == (0, 0.0)


def test_ends_are_the_models_own() -> None:
    request = decoded(Relaxed(50.0, 50.0), 2500)
    text, num_ends = request.token_ids[: request.num_prompt_tokens], 0
    for token_id in request.output_token_ids:
        own = int(TARGET.logits_after(text).argmax())
        assert (own in ENDS) == (token_id in ENDS)
        num_ends += token_id in ENDS
        text.append(token_id)
    assert num_ends > 50


def test_a_grammar_forbids_what_the_rule_would_take() -> None:
    request = decoded(Relaxed(50.0, 50.0), 400, constraint=OnlyOddAfterEven(VOCAB_SIZE))
    answer = request.output_token_ids
    assert all(after % 2 for before, after in pairwise(answer) if before % 2 == 0)
    assert request.acceptance.report(answer)["num_changed"] != 0


def test_a_choice_that_is_none_of_the_likeliest_stays() -> None:
    """As a grammar may make it, where nobody knows how likely it is."""
    constraint = OnlyOddAfterEven(VOCAB_SIZE)
    constraint.allowed = {7}
    request = decoded(Relaxed(50.0, 50.0), 50, constraint=constraint)
    assert set(request.output_token_ids) == {7}


def test_strengths_are_numbers_from_nothing_on() -> None:
    with pytest.raises(ConfigError, match=r"gap is -1, but must be from 0 to 100"):
        Relaxed(gap=-1)
    with pytest.raises(ConfigError, match="budget is nan"):
        replace(Relaxed(), budget=float("nan"))
