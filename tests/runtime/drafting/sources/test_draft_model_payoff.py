"""A draft model's payoff: where it is asked, how far it goes, and when it falls silent."""

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.sources.draft_model import DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelSource
from tests.fake_target import make_manifest
from tests.runtime.drafting.sources.drafting_target import (
    MANIFEST,
    DraftingTarget,
    chain_of,
    draft_request_of,
    greedy,
    source_of,
)


def test_a_draft_model_is_silent_near_the_end_of_its_context() -> None:
    target = DraftingTarget(make_manifest(6, max_context=64))
    source = source_of(target)
    text = [1, 2] * 24
    request = source.begin(RequestContext(text))
    assert source.propose([draft_request_of(request)]) != [None]
    target.widths.clear()
    text += [1]
    assert source.propose([draft_request_of(request)]) == [None]
    assert not source.is_worth_asking(draft_request_of(request), 0.0)
    assert not target.widths


def test_a_draft_model_is_asked_where_others_promise_less_than_it_costs() -> None:
    source = source_of(DraftingTarget())
    assert source.is_costly
    source.gain.step_s, source.gain.token_s = 2e-3, 1e-3
    request = source.begin(RequestContext([1, 2, 3]))
    draft_request = draft_request_of(request, max_depth=100, token_s=1e-2)  # a model of a fifth of a token
    assert source.is_worth_asking(draft_request, 0.1)
    assert not source.is_worth_asking(draft_request, 0.9)
    assert source.is_worth_asking(draft_request._replace(token_s=0.0), 0.9)  # nothing was measured


def test_guesses_that_no_pass_had_room_for_are_no_hits() -> None:
    source = source_of(DraftingTarget())
    text = [1, 2, 3]
    request = source.begin(RequestContext(text))
    for _ in range(20):
        before = source.gain.hits
        source.propose([draft_request_of(request)])
        root, pending = len(text) - 1, text[-1]
        text += greedy(DraftingTarget(), text, 1)
        nothing = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)
        request.observe(ScoredTree(DraftTree.root(pending), range(1), root, *nothing, MANIFEST.vocab_size))
        assert source.gain.hits < before


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    source = source_of(DraftingTarget())
    source.gain.step_s, source.gain.token_s = 2e-3, 1e-3
    text = [1, 2] * 40  # 80 ms to read; a step gains 4 ms where others know nothing
    request = source.begin(RequestContext(text))
    assert not source.is_worth_asking(draft_request_of(request, max_depth=100, token_s=1e-2), 0.0)
    text += [3] * 90  # an answer that went on for so long may go on
    assert not source.is_worth_asking(draft_request_of(request, max_depth=10, token_s=1e-2), 0.0)
    short = source.begin(RequestContext([1, 2] * 10))
    assert source.is_worth_asking(draft_request_of(short, max_depth=100, token_s=1e-2), 0.0)


def test_a_draft_model_of_no_use_falls_silent_after_a_bounded_trial() -> None:
    source = source_of(DraftingTarget())
    num_asked = 0
    for _ in range(5):
        text = [1, 2, 3]
        request = source.begin(RequestContext(text))
        for _ in range(100):
            source.gain.step_s = 2e-3  # a fifth of a token
            draft_request, guesses = draft_request_of(request, token_s=1e-2), set[int]()
            if source.is_worth_asking(draft_request, 0.0):
                num_asked += 1
                [proposal] = source.propose([draft_request])
                assert proposal is not None
                first = zip(proposal.token_ids, proposal.parents, strict=True)
                guesses.update(token_id for token_id, parent in first if parent == 0)
            text.append(next(token_id for token_id in range(6) if token_id not in guesses))
            request.observe(None)
        request.finish()
    assert 0 < num_asked < 50


def test_chains_are_as_long_as_their_probabilities_and_the_nodes_allow() -> None:
    sure, unsure = DraftingTarget(sharpness=30.0), DraftingTarget(sharpness=0.1)
    lengths = []
    for target in (sure, unsure):
        source = source_of(target)
        source.gain.step_s = 4e-3
        request = source.begin(RequestContext([1, 2, 3]))
        [proposal] = source.propose([DraftRequest(request, 5, 32, token_s=1e-2)])
        lengths.append(len(chain_of(proposal)))
    assert lengths[0] == 4
    assert lengths[1] == 1


def test_a_prompt_beyond_its_context_is_drafted_for_where_it_reads_less() -> None:
    long = [1, 2, 3] * 100
    for context, is_asked in ((0, False), (40, True)):
        source = DraftModelSource(DraftModel(DraftingTarget(), 4), MANIFEST.vocab_size, context)
        assert source.is_worth_asking(draft_request_of(source.begin(RequestContext(long))), 0.0) is is_asked
