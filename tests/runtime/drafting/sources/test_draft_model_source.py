"""A draft model as a source: what it reads, what it proposes, and what it may do wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import RequestContext
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.draft_model import NARROW, DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelSource
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import decode, reference
from tests.runtime.drafting.sources.drafting_target import (
    MANIFEST,
    DraftingTarget,
    OddTarget,
    chain_of,
    draft_request_of,
    greedy,
    source_of,
)


def test_a_draft_model_writes_on_as_it_would_alone_with_what_else_it_thinks_likely() -> None:
    target = DraftingTarget(sharpness=2.0)
    source = source_of(target)
    text = [1, 2, 3, 4]
    [proposal] = source.propose([draft_request_of(source.begin(RequestContext(text)))])
    assert proposal is not None
    check_proposal(proposal, 4, source.name)
    assert chain_of(proposal) == greedy(target, text, 3)
    logits = target.logits_after(text)
    expected = np.exp(logits) / np.exp(logits).sum()
    first = [i for i, parent in enumerate(proposal.parents) if parent == 0]
    assert len(first) > 1
    for i in first:
        assert proposal.values[i] == pytest.approx(expected[proposal.token_ids[i]], rel=1e-5)


def test_only_what_came_since_is_scored_anew() -> None:
    target = DraftingTarget()
    source = source_of(target)
    text = [1, 2, 3, 4]
    request = source.begin(RequestContext(text))
    source.propose([draft_request_of(request)])
    assert target.widths == [[4], [1], [1]]
    first, second, _ = greedy(target, text, 3)
    text += [first, second, 5, 0]  # the chain's third token was not scored, and another came
    request.observe(None)
    [proposal] = source.propose([draft_request_of(request)])
    assert target.widths[3:] == [[2], [1], [1]]
    assert chain_of(proposal) == greedy(target, text, 3)
    text += [(greedy(target, text, 1)[0] + 1) % 6]  # all guesses were wrong: their rows go
    request.observe(None)
    [proposal] = source.propose([draft_request_of(request)])
    assert target.widths[6:] == [[1], [1], [1]]
    assert chain_of(proposal) == greedy(target, text, 3)


def test_long_prompts_are_caught_up_with_by_one_chunk_a_step() -> None:
    target = DraftingTarget(chunk=32)
    source = source_of(target)
    text = [1, 2, 3, 4] * 20
    request = source.begin(RequestContext(text))
    said = [source.propose([draft_request_of(request, max_depth=1)])[0] for _ in range(3)]
    assert target.widths == [[32], [32], [16]]
    assert said[:2] == [None] * 2
    assert chain_of(said[2]) == greedy(target, text, 1)


def test_a_text_that_begins_like_one_that_ended_is_read_from_where_they_part() -> None:
    target = DraftingTarget()
    source = source_of(target)
    first = source.begin(RequestContext([1, 2, 3, 4, 5, 0]))
    source.propose([draft_request_of(first, max_depth=1)])
    first.finish()
    other = source.begin(RequestContext([1, 2, 3, 4, 0, 0, 1]))
    source.propose([draft_request_of(other, max_depth=1)])
    assert target.widths == [[6], [3]]
    source.restore({})  # what engines do that forget
    source.propose([draft_request_of(other, max_depth=1)])
    assert target.widths[2:] == [[7]]


def test_slots_of_requests_that_ended_or_vanished_serve_others() -> None:
    source = source_of(DraftingTarget())
    model = source._model
    assert model is not None
    for _ in range(5):
        finished, vanished = source.begin(RequestContext([1, 2])), source.begin(RequestContext([3, 4]))
        source.propose([draft_request_of(finished), draft_request_of(vanished)])
        finished.finish()
    assert len(model._slots) == 2


def test_requests_side_by_side_share_passes_and_long_texts_have_their_own() -> None:
    target = DraftingTarget()
    source = source_of(target)
    texts = [[1, 2], [3, 4, 5], [2] * (NARROW + 1), [5, 0, 1, 2]]
    requests = [source.begin(RequestContext(text)) for text in texts]
    proposals = source.propose([draft_request_of(request, max_depth=2) for request in requests])
    assert target.widths == [[2, 3], [NARROW + 1], [4], [1] * 4]
    assert [chain_of(each) for each in proposals] == [greedy(target, text, 2) for text in texts]


@pytest.mark.parametrize("order", [3, 2], ids=["knowing", "ignorant"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_draft_models_change_no_token_in_ragged_batches_and_free_their_slots(order: int, temperature: float) -> None:
    manifest = make_manifest(6, max_context=64)
    source = source_of(FakeTarget(replace(manifest, max_context=48), order))  # whose context ends before the target's
    decoder = Decoder(
        FakeTarget(manifest),
        RetrievalDrafter(DraftConfig(is_logits_used=False), [source]).wait(),
        EngineConfig(max_batch=4, prefill_chunk=7),
    )
    prompts = [[5, 1, 2], [3], [1, 4, 0, 2] * 4, [2] * 9, [0, 5], [4] * 20]
    sampling = SamplingConfig(temperature=temperature, seed=3)
    configs = [GenerationConfig(max_tokens=20 + 4 * i, sampling=sampling) for i in range(len(prompts))]
    cancelled = decoder.submit([1, 3, 5], configs[-1])
    for _ in range(3):
        decoder.step()
    decoder.cancel(cancelled)
    expected = [reference(manifest, *each) for each in zip(prompts, configs, strict=True)]
    requests = [decoder.submit(*each) for each in zip(prompts, configs, strict=True)]
    decoder.finish(*requests)
    assert [request.output_token_ids for request in requests] == expected
    assert decode(decoder, prompts[::-1], configs[::-1]) == expected[::-1]
    if order == 3 and not temperature:
        assert sum(request.stats.num_accepted_tokens for request in requests) > 30
    assert source._model is not None
    assert all(slot.is_free for slot in source._model._slots)
    assert 0 < len(source._model._slots) <= 4


@pytest.mark.parametrize(
    ("token_id", "logit"), [(-1, 0.0), (6, 0.0), (2**62, 0.0), (1, math.nan), (1, math.inf), (1, -math.inf)]
)
def test_guesses_that_cannot_be_are_left_out(token_id: int, logit: float) -> None:
    source = source_of(OddTarget(token_id, logit))
    [proposal] = source.propose([draft_request_of(source.begin(RequestContext([1, 2, 3])))])
    assert proposal == DraftTree.root(3)


def test_vocabularies_may_differ_in_ids_that_texts_hardly_ever_hold() -> None:
    target = DraftingTarget()
    source = source_of(target, vocab_size=9)
    text = [1, 2, 8]
    request = source.begin(RequestContext(text))
    assert source.propose([draft_request_of(request)]) == [None]
    text += [1]
    assert source.propose([draft_request_of(request)]) == [None]
    assert not target.widths
    lacking = source_of(DraftingTarget(), vocab_size=2)
    [proposal] = lacking.propose([draft_request_of(lacking.begin(RequestContext([0, 1, 0, 1])))])
    assert proposal is not None
    assert set(proposal.token_ids) <= {0, 1}


def test_a_draft_model_that_fails_is_told_once_and_asked_no_more() -> None:
    target = DraftingTarget()
    source = source_of(target)
    request = source.begin(RequestContext([1, 2, 3]))
    target.is_broken = True
    with pytest.warns(UserWarning, match=r"draft model is not asked again: .*failed in a pass"):
        assert source.propose([draft_request_of(request)]) == [None]
    target.is_broken = False
    assert source.propose([draft_request_of(request)]) == [None]
    assert not source.is_worth_asking(draft_request_of(request, token_s=1.0), 0.0)


def test_of_a_long_prompt_it_reads_what_it_was_told_and_all_of_the_answer() -> None:
    target = DraftingTarget()
    source = DraftModelSource(DraftModel(target, 4), MANIFEST.vocab_size, context=10)
    text = [1, 2, 3, 4, 5] * 6
    request = source.begin(RequestContext(text))
    assert list(request.read_token_ids) == text[-5:]  # no passage of the rest is as short as what is left
    [proposal] = source.propose([draft_request_of(request)])
    assert chain_of(proposal) == greedy(target, text[-5:], 3)
    text += chain_of(proposal)[:2]
    target.widths.clear()
    request.observe(None)
    [proposal] = source.propose([draft_request_of(request)])
    assert list(request.read_token_ids) == text[-7:]
    assert chain_of(proposal) == greedy(target, text[-7:], 3)
    assert target.widths[0] == [1]
    assert source.begin(RequestContext([1, 2])).read_token_ids == [1, 2]


@pytest.mark.parametrize("context", [8, 40])
def test_what_is_left_unread_changes_no_token(context: int) -> None:
    manifest = make_manifest(vocab_size=6, max_context=400)
    source = DraftModelSource(DraftModel(DraftingTarget(), 4), 6, context)
    drafter = RetrievalDrafter(DraftConfig(is_history_used=False), [source]).wait()
    prompts, config = [[1, 2, 3, 4] * 40, [5, 1]], GenerationConfig(60)
    answers = decode(Decoder(FakeTarget(manifest), drafter, EngineConfig(max_batch=2)), prompts, [config] * 2)
    assert answers == [reference(manifest, prompt, config) for prompt in prompts]
