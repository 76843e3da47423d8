"""A speculator's tree: what it follows, how sure it is, how far it grows, and what is left out of it."""

import math

import numpy as np
import pytest

from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalRequest
from reader_edge_runtime.drafting.speculators.speculated_tree import SpeculatedTree
from reader_edge_runtime.drafting.speculators.speculator_request import SpeculatorRequest
from tests.fake_speculator import (
    MANIFEST,
    TellingTarget,
    begun,
    draft_request,
    drafter_of,
    greedy,
    likeliest,
    source_of,
    speculator_of,
)


def test_the_tree_follows_what_the_speculator_says_and_is_as_sure() -> None:
    speculator = speculator_of(sharpness=9.0)
    source, text = source_of(speculator), [1, 2, 3, 4]
    [tree] = source.propose([draft_request(begun(source, text))])
    assert tree is not None
    check_proposal(tree, 4, source.name)
    assert likeliest(tree, 3) == greedy(speculator._target, text, 3)
    logits = speculator._target.logits_after(text)
    shares = np.exp(logits) / np.exp(logits).sum()
    for node in (node for node, parent in enumerate(tree.parents) if parent == 0):
        assert tree.values[node] == pytest.approx(shares[tree.token_ids[node]], rel=1e-5)
    assert speculator.num_caught_up == [[3]]  # the first token has none before it
    assert speculator.num_stepped


def test_without_a_sketch_the_tree_is_what_follows_the_text() -> None:
    speculator = speculator_of(sharpness=9.0)
    source = source_of(speculator)
    [tree] = source.propose([DraftRequest(begun(source, [1, 2, 3, 4]), 16, 4, 0.0)])
    assert tree is not None
    assert set(tree.parents[1:]) == {0}
    assert not speculator.num_stepped


def test_of_many_guesses_alike_few_are_taken_and_each_token_once() -> None:
    wide, twice = SpeculatedTree(5, 100), SpeculatedTree(5, 100)
    wide.add_root(np.arange(20), np.full(20, 0.05, np.float32), np.zeros(2, np.float32))
    assert wide.tree.token_ids == [5, *range(8)]
    twice.add_root(np.array([3, 3, 4]), np.array([0.5, 0.3, 0.2], np.float32), np.zeros(2, np.float32))
    assert twice.tree.token_ids == [5, 3, 4]
    assert twice.tree.values[1:] == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
def test_named_tokens_are_as_likely_as_answers_at_their_temperature_have_them(temperature: float) -> None:
    logits = np.array([3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    shares, wanted = (np.exp(each) / np.exp(each).sum() for each in (logits, logits / temperature))
    tree = SpeculatedTree(5, 6, temperature)
    tree.add_root(np.arange(4), shares[:4].astype(np.float32), np.zeros(2, np.float32))
    assert tree.tree.token_ids[1:] == [0, 1, 2, 3][: (wanted[:4] >= 0.005).sum()]
    assert tree.tree.values[1:] == pytest.approx(wanted[: len(tree.tree) - 1], rel=1e-5)


@pytest.mark.parametrize("temperature", [5e-324, 1e-20])
@pytest.mark.parametrize("others", [(0.3, 0.1), (0.0, 0.0)])
def test_at_hardly_any_temperature_the_likeliest_is_sure(temperature: float, others: tuple[float, float]) -> None:
    tree = SpeculatedTree(5, 6, temperature)
    tree.add_root(np.arange(3), np.array([0.6, *others], np.float32), np.zeros(2, np.float32))
    assert (tree.tree.token_ids, tree.tree.values[1:]) == ([5, 0], [1.0])


def test_a_source_hears_at_which_temperature_its_answer_is_drawn() -> None:
    shares = []
    for temperature in (0.0, 0.5):
        source = source_of(speculator_of())
        decoder = Decoder(TellingTarget(MANIFEST), drafter_of(source), EngineConfig())
        request = decoder.submit([1, 2, 3], GenerationConfig(10, sampling=SamplingConfig(temperature=temperature)))
        assert request.drafter is not None
        assert isinstance(request.drafter, RetrievalRequest)
        [found] = [each for each in request.drafter.sources.states if isinstance(each, SpeculatorRequest)]
        shares.append(found.temperature)
    assert shares == [0.0, 0.5]


@pytest.mark.parametrize("odd", [(-1, 0.5), (6, 0.5), (2**62, 0.5), (1, math.nan), (1, math.inf), (1, -1.0), (1, 2.0)])
def test_guesses_that_cannot_be_are_left_out(odd: tuple[int, float]) -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    speculator.odd = odd
    [tree] = source.propose([draft_request(begun(source, [1, 2, 3]))])
    assert tree == DraftTree.root(3)
    if not math.isfinite(odd[1]):
        sampled = SpeculatedTree(3, 6, temperature=0.7)
        sampled.add_root(np.array([odd[0]]), np.array([odd[1]], np.float32), np.zeros(2, np.float32))
        assert sampled.tree == DraftTree.root(3)


def test_retrieved_nodes_are_judged_where_the_speculator_names_them_or_not() -> None:
    speculator = speculator_of(sharpness=9.0)
    source, text = source_of(speculator), [1, 2, 3, 4]
    [likely] = greedy(speculator._target, text, 1)
    unlikely = int(speculator._target.logits_after(text).argmin())

    def preview(tree: DraftTree) -> DraftTree:
        draft = DraftTree.root(4)
        for token_id in (likely, unlikely):
            draft.add(token_id, 0, "context", 0.4)
        return draft

    [tree] = source.propose([DraftRequest(begun(source, text), 16, 4, 0.0, preview)])
    assert tree is not None
    assert speculator.num_stepped == [[2]]
    values = [tree.values[tree.child(0, token_id)] for token_id in (likely, unlikely)]
    assert values[0] > 0.9 > 0.1 > values[1]
    assert tree.child(0, likely) in tree.parents  # what follows it is scored, too


def test_the_tree_grows_while_a_pass_saves_more_than_it_takes() -> None:
    sizes = []
    for step_s in (1e-5, 1e-3, 1.0):
        speculator = speculator_of(sharpness=9.0)
        source = source_of(speculator)
        source.times._seconds = [step_s] * len(source.times._seconds)
        source.times.learn = lambda num_nodes, seconds: None  # type: ignore[method-assign]
        source.propose([draft_request(begun(source, [1, 2, 3, 4]), 8, token_s=1e-2)])
        sizes.append(sum(map(sum, speculator.num_stepped)))
    assert sizes[0] > sizes[1] > sizes[2] == 0
