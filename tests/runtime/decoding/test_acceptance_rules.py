"""Acceptance rules of a request: what a rule asks for and may not take; the near-tie guard."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from reader_edge.verify.drafters import StressDrafter
from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.sampler import Sampler, token_logprob
from reader_edge_runtime.decoding.verification import near_tie_margin
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, DraftError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, SecondBest, make_decoder, reference

VOCAB_SIZE = 6
MANIFEST = make_manifest(VOCAB_SIZE)
TARGET = FakeTarget(MANIFEST)
PROMPTS = [[1, 2, 3], [4, 5]]
CONFIG = GenerationConfig(max_tokens=60, acceptance=SecondBest())
PENALISED = SamplingConfig(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2)


class NeverTwice:
    """A constraint that lets no token come twice in a row. followed: the answer so far."""

    is_over = False
    forced: Sequence[int] = ()

    def __init__(self) -> None:
        self.followed: list[int] = []

    def mask(self) -> np.ndarray:
        return np.array([not self.followed or token_id != self.followed[-1] for token_id in range(VOCAB_SIZE)])

    def advance(self, token_id: int) -> None:
        self.followed.append(token_id)

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        return tree

    def prepare(self) -> None:
        """The mask is made when it is read."""

    def close(self) -> None:
        """Nothing is held."""


class BestOfLogits(AcceptanceRule):
    """Exact in greedy decoding, by another way."""

    name = "best of logits"
    is_exact = wants_logits = True

    def next_token(self, choices: Choices, node: int) -> int:
        return int(choices.logits(node).argmax())


class Taking(AcceptanceRule):
    """Takes one token whatever the target says."""

    name = "stubborn"

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id

    def next_token(self, choices: Choices, node: int) -> int:
        return self.token_id


def a_decoder() -> Decoder:
    return make_decoder(MANIFEST, RandomDrafter(VOCAB_SIZE, 12, seed=1))


def decoded(config: GenerationConfig, constraint: NeverTwice | None = None) -> list[Request]:
    """Of the prompts, side by side; the constraint is of the first."""
    decoder = a_decoder()
    constraints = (constraint, None)
    requests = [decoder.submit(p, config, constraint=c) for p, c in zip(PROMPTS, constraints, strict=True)]
    decoder.finish(*requests)
    return requests


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalties", [SamplingConfig(), PENALISED], ids=["plain", "penalties"])
def test_what_a_rule_takes_is_what_penalties_and_draws_count(temperature: float, penalties: SamplingConfig) -> None:
    sampling = replace(penalties, temperature=temperature, seed=3)
    num_second = 0
    for request in decoded(replace(CONFIG, sampling=sampling, wants_logprobs=True, is_scored=True)):
        text = request.token_ids[: request.num_prompt_tokens]
        sampler = Sampler(sampling, VOCAB_SIZE, text)
        for token_id, logprob in zip(request.output_token_ids, request.logprobs, strict=True):
            logits = TARGET.logits_after(text)
            own, second = sampler.peek(logits, len(text)), int(np.argsort(-logits, kind="stable")[1])
            assert token_id in (own, second)
            num_second += token_id != own
            assert logprob.logprob == pytest.approx(token_logprob(logits, token_id, 0).logprob, abs=1e-5)
            sampler.take(token_id)
            text.append(token_id)
        assert request.stats.log_probability == pytest.approx(sum(each.logprob for each in request.logprobs), abs=1e-3)
    assert num_second > 5


def test_a_grammar_follows_the_tokens_that_a_rule_takes() -> None:
    constraint = NeverTwice()
    first, _ = decoded(CONFIG, constraint)
    answer = first.output_token_ids
    assert constraint.followed == answer
    assert all(token_id != other for token_id, other in pairwise(answer))


def test_looking_has_no_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, sampling=replace(PENALISED, temperature=1.0, seed=5))
    once = [request.output_token_ids for request in decoded(config)]
    peek = Request.peek

    def peek_twice(self: Request, result: ForwardResult, b: int, row: int, reads_logits: bool) -> int:
        first = peek(self, result, b, row, reads_logits)
        assert peek(self, result, b, row, reads_logits) == first
        return first

    monkeypatch.setattr(Request, "peek", peek_twice)
    assert [request.output_token_ids for request in decoded(config)] == once


def test_an_exact_rule_that_reads_logits_changes_no_token() -> None:
    config = GenerationConfig(max_tokens=60, acceptance=BestOfLogits())
    requests = decoded(config)
    assert [each.output_token_ids for each in requests] == [reference(MANIFEST, p, config) for p in PROMPTS]
    assert sum(each.stats.num_accepted_tokens for each in requests) > 0


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2])
def test_a_token_that_cannot_come_ends_the_request_and_names_the_rule(token_id: int) -> None:
    decoder = a_decoder()
    config = GenerationConfig(max_tokens=20, acceptance=Taking(token_id))
    faulty = decoder.submit(PROMPTS[0], config, constraint=NeverTwice())
    other = decoder.submit(PROMPTS[1], GenerationConfig(max_tokens=20))
    decoder.finish(other)
    assert isinstance(faulty.error, DraftError)
    assert f"'stubborn' took token id {token_id}" in str(faulty.error)
    assert other.output_token_ids == reference(MANIFEST, PROMPTS[1], GenerationConfig(max_tokens=20))


def test_a_rule_that_reads_what_a_package_does_not_report_is_refused() -> None:
    class Reading(SecondBest):
        wants_hidden_states = True

    with pytest.raises(ConfigError, match=r"'second best' reads hidden states, which this package does not report"):
        a_decoder().submit([1], GenerationConfig(acceptance=Reading()))
    with pytest.raises(ConfigError, match="must be an AcceptanceRule"):
        GenerationConfig(acceptance="second best")  # type: ignore[arg-type]


NOISE = 0.2
NOISY_PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7]]
PLAIN = GenerationConfig(max_tokens=120, is_drafted=False)


class NoisyTarget(FakeTarget):
    """Logits of wide passes differ from those of single-token passes, as on a GPU."""

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        exact = super().logits_of(cache, wanted)
        if len(wanted.trees) == 1 and len(wanted.trees[0]) == 1:
            return exact
        noise = np.random.default_rng(len(wanted.trees[0])).uniform(-NOISE, NOISE, exact.shape)
        return exact + noise.astype(np.float32)


NOISY_TARGET = NoisyTarget(make_manifest())


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


@pytest.mark.long
def test_noise_tips_choices_without_the_guard_whose_margin_is_the_measured_noise() -> None:
    plain, drafted = _decode(0.0, 1, is_drafted=False), _decode(0.0, 1)
    assert [each.output_token_ids for each in drafted] != [each.output_token_ids for each in plain]
    assert near_tie_margin(WidthReport(16, 16, 0.0)) == 0
    assert near_tie_margin(WidthReport(16, 3, 0.01)) == pytest.approx(0.04)
    assert not any(each.stats.num_redecided_tokens for each in _decode(2 * NOISE, 1, is_drafted=False))
    sampled = _decode(2 * NOISE, 1, sampling=SamplingConfig(temperature=0.5))
    assert not any(each.stats.num_redecided_tokens for each in sampled)


def _decode(margin: float, batch_size: int, **changes: object) -> list[Request]:
    config = replace(GenerationConfig(max_tokens=120), **changes)  # type: ignore[arg-type]
    # The drafter knows the plain greedy answers, and hides them among wrong branches.
    known = _run(Decoder(NOISY_TARGET, StressDrafter([], 32), EngineConfig(max_batch=1)), PLAIN)
    answers = [(tuple(each.token_ids[: each.num_prompt_tokens]), each.output_token_ids) for each in known]
    config_of_engine = EngineConfig(max_batch=batch_size)
    return _run(Decoder(NOISY_TARGET, StressDrafter(answers, 32), config_of_engine, near_tie_margin=margin), config)


def _run(decoder: Decoder, config: GenerationConfig) -> list[Request]:
    requests = [decoder.submit(prompt, config) for prompt in NOISY_PROMPTS]
    decoder.finish(*requests)
    return requests
