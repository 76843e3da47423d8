"""The rules by which a lossy answer may differ, and what an answer reports of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reader_edge_lossy.big_little import BigLittle
from reader_edge_lossy.deviation import DeviationMeter, repeated_share
from reader_edge_lossy.relaxed import Relaxed
from reader_edge_runtime import Engine
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.errors import ConfigError
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference
from tests.reader_edge.package_copy import PackageCopy


class OnlyOddAfterEven:
    """allowed: the tokens there are at all."""

    is_over = False
    forced: Sequence[int] = ()

    def __init__(self, vocab_size: int) -> None:
        self.allowed = set(range(vocab_size))
        self._vocab_size = vocab_size
        self._last = 1

    def mask(self) -> np.ndarray:
        tokens = range(self._vocab_size)
        return np.array([token in self.allowed and (self._last % 2 == 1 or token % 2 == 1) for token in tokens])

    def advance(self, token_id: int) -> None:
        self._last = token_id

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        return tree

    def prepare(self) -> None:
        """The mask is made when it is needed."""

    def close(self) -> None:
        """Nothing is held."""


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


@pytest.mark.long
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


def big_little(strength: BigLittle, num_tokens: int) -> Request:
    decoder = make_decoder(MANIFEST, RandomDrafter(VOCAB_SIZE, 16, seed=2))
    request = decoder.submit(
        [1, 2], GenerationConfig(num_tokens, acceptance=strength.rule(ENDS, None), ignores_eos=True)
    )
    decoder.finish(request)
    return request


@pytest.mark.long
def test_another_choice_has_the_probability_of_its_option() -> None:
    request = big_little(BigLittle(distance=2.0), 2000)
    text, changed, num_ends = request.token_ids[: request.num_prompt_tokens], [], 0
    for token_id in request.output_token_ids:
        logits = TARGET.logits_after(text).astype(np.float64)
        distances = np.log(np.exp(logits - logits.max()).sum()) - (logits - logits.max())
        own = int(logits.argmax())
        if token_id != own:
            changed.append(float(distances[token_id]))
            assert own not in ENDS
            assert token_id not in ENDS
        num_ends += token_id in ENDS
        text.append(token_id)
    assert min(changed) > 0
    assert max(changed) <= 2.0 + 1e-6
    assert len(changed) > 100
    assert num_ends > 20


def test_at_distance_zero_the_tokens_are_those_of_exact_decoding() -> None:
    assert big_little(BigLittle(distance=0.0), 300).output_token_ids == reference(
        MANIFEST, [1, 2], GenerationConfig(300)
    )


def test_an_engine_drafts_with_the_small_model_that_it_is_given(demo_folder: Path, tmp_path: Path) -> None:
    small = PackageCopy(demo_folder, tmp_path / "small")
    small.write_file("model.onnx", (small.folder / "model.onnx").read_bytes() + b"\x32\x05small")  # its doc_string
    sources, config = DraftSources(draft_model=small.folder), EngineConfig(is_calibrated=False)
    engine = Engine.load(demo_folder, config, sources=sources, rule=BigLittle(distance=2.0))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    result = engine.generate("# tar", GenerationConfig(40, ignores_eos=True))
    assert result.stats.drafted_by_source["draft model"] > 0
    assert result.deviation["rule"] == "big-little"
    undrafted = Engine.load(demo_folder, sources=sources, rule=BigLittle(), is_drafted=False)
    assert undrafted.generate("# tar", GenerationConfig(4)).deviation["num_changed"] == 0


def test_distances_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"distance is -1, but must be from 0 to 100"):
        BigLittle(distance=-1)


def test_the_share_of_repeated_runs_of_four_tokens_is_that_of_distinct_ones_missing() -> None:
    assert repeated_share([1, 2, 3]) == 0
    assert repeated_share([1, 2, 3, 4, 5]) == 0
    assert repeated_share([7] * 11) == pytest.approx(1 - 1 / 8)


def test_the_usual_share_is_of_the_models_own_answers_as_long_as_this_one() -> None:
    own = WarmupAnswers([np.array([1, 2, 3, 4, 5, 6, 7, 8] * 2, np.int32), np.arange(16, dtype=np.int32)])
    meter = DeviationMeter("some rule", {"gap": 1.0}, own)
    assert meter.report(range(8))["usual_repeated_4grams"] == 0
    assert meter.report(range(16))["usual_repeated_4grams"] == pytest.approx(5 / 13 / 2)
    assert DeviationMeter("some rule", {}).report([1])["usual_repeated_4grams"] is None


def test_changes_are_counted_and_shared_among_all_tokens() -> None:
    meter = DeviationMeter("some rule", {"gap": 1.0})
    meter.change(0.5)
    meter.change(0.25)
    report = meter.report(range(10))
    assert (report["num_changed"], report["nats_per_token"], report["num_tokens"]) == (2, 0.075, 10)
    assert meter.report([])["nats_per_token"] == 0
    assert report["figures"] == {"gap": 1.0}
