"""A trained head as a source: what it reads, what it proposes, when it is asked, and what it may do wrong."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST, NUM_GUESSES, NUM_SECOND, HeadFile, HeadGuesses
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.drafting.sources.head_source import HeadRequest, HeadSource
from reader_edge_runtime.errors import ProviderError
from tests.drafted_text import DraftedText

VOCAB_SIZE = 100
IDS = np.arange(10, 90, 2, dtype=np.int32)


@dataclass
class FakeHead:
    """Guesses the numbers after its pending token's. asked: the states it was given."""

    probability: float = 0.1
    offset: int = 1
    asked: list[Float32Array] = field(default_factory=list)
    is_broken: bool = False

    def guess(self, hidden_states: Float32Array, pending: Int64Array) -> HeadGuesses:
        if self.is_broken:
            raise ProviderError("ONNX Runtime failed in the head.")
        self.asked += list(hidden_states)
        numbers = pending[:, None] + self.offset + np.arange(NUM_FIRST)
        following = numbers[:, :NUM_GUESSES, None] + 1 + np.arange(NUM_SECOND)
        probabilities = np.full(numbers.shape, self.probability, np.float32)
        return HeadGuesses(probabilities, numbers, np.full(following.shape, self.probability, np.float32), following)


def source_of(model: FakeHead) -> HeadSource:
    return HeadSource(HeadFile(HeadSizes(1, len(IDS)), IDS, {}), model, VOCAB_SIZE)


def scored(root: int, tree: DraftTree) -> ScoredTree:
    """A pass whose states are the numbers of the nodes."""
    count = len(tree)
    states = np.arange(count, dtype=np.float32)[:, None]
    return ScoredTree(
        tree, range(count), root, np.zeros((count, 1), np.int64), np.zeros((count, 1), np.float32), VOCAB_SIZE, states
    )


def test_a_head_reads_the_state_that_the_pending_token_was_chosen_from() -> None:
    model = FakeHead()
    source = source_of(model)
    token_ids = [1, 2, 3]
    request = source.begin(RequestContext(token_ids))
    tree = DraftTree([3, 7, 20, 22], [-1, 0, 0, 2], [""] * 4)
    token_ids += [20, 22, 30]  # by node 2 to node 3, and what the target chose there
    request.observe(scored(2, tree))
    [proposal] = source.propose([DraftRequest(request, 8, 4)])
    assert [state.tolist() for state in model.asked] == [[3.0]]
    assert proposal is not None
    assert proposal.token_ids[: 1 + NUM_FIRST] == [30, 32, 34, 36, 38, 40, 42]
    assert [proposal.token_ids[i] for i, parent in enumerate(proposal.parents) if parent == 1] == [34, 36, 38, 40]
    check_proposal(proposal, 30, "head")


def test_a_head_says_nothing_where_the_target_was_not_heard() -> None:
    source = source_of(FakeHead())
    token_ids = [1, 2, 3]
    request = source.begin(RequestContext(token_ids))
    assert source.propose([DraftRequest(request, 8, 4)]) == [None]
    token_ids += [20]
    request.observe(scored(2, DraftTree.root(3)))
    request.observe(None)
    request.observe(replace(scored(3, DraftTree.root(20)), hidden_states=None, vocab_size=VOCAB_SIZE))
    token_ids += [22]  # by a step of which nothing was told
    assert source.propose([DraftRequest(request, 8, 4)]) == [None]


@pytest.mark.parametrize("probability", [math.nan, math.inf, -1.0, 2.0])
def test_guesses_that_are_no_probabilities_are_left_out(probability: float) -> None:
    assert proposal_of(FakeHead(probability=probability)) == DraftTree.root(20)


@pytest.mark.parametrize("offset", [-(2**62), -1000, 1000, 2**62])
def test_guesses_that_are_no_tokens_are_left_out(offset: int) -> None:
    assert proposal_of(FakeHead(offset=offset)) == DraftTree.root(20)


def proposal_of(model: FakeHead) -> DraftTree:
    source, token_ids = source_of(model), [1, 2, 3]
    request = source.begin(RequestContext(token_ids))
    token_ids += [20]
    request.observe(scored(2, DraftTree.root(3)))
    [proposal] = source.propose([DraftRequest(request, 8, 4)])
    assert proposal is not None
    return proposal


def test_a_head_that_fails_is_told_once_and_asked_no_more() -> None:
    model = FakeHead(is_broken=True)
    source, token_ids = source_of(model), [1, 2, 3]
    request = source.begin(RequestContext(token_ids))
    token_ids += [20]
    request.observe(scored(2, DraftTree.root(3)))
    with pytest.warns(UserWarning, match="not asked again"):
        assert source.propose([DraftRequest(request, 8, 4)]) == [None]
    model.is_broken = False
    assert source.propose([DraftRequest(request, 8, 4)]) == [None]
    assert not source.is_worth_asking(DraftRequest(request, 8, 4, token_s=1.0), 0.0)


def heard(source: HeadSource) -> HeadRequest:
    """A request that knows what the target thought of its last token but one."""
    token_ids = [1, 2, 3]
    request = source.begin(RequestContext(token_ids))
    token_ids += [20]
    request.observe(scored(2, DraftTree.root(3)))
    return request


def test_a_head_is_asked_where_others_promise_less_than_it_costs() -> None:
    source = source_of(FakeHead())
    assert source.is_costly
    assert source.wants_gain
    draft_request = DraftRequest(heard(source), 8, 4, token_s=1e-2)
    assert source.is_worth_asking(draft_request, 0.9)  # what it takes is not known
    source.learn_gain(draft_request.request, 0, 1e-3)  # a tenth of a token
    assert source.is_worth_asking(draft_request, 0.1)
    assert not source.is_worth_asking(draft_request, 0.9)
    assert source.is_worth_asking(draft_request._replace(token_s=0.0), 0.9)  # nothing was measured
    unheard = source.begin(RequestContext([1, 2]))
    assert not source.is_worth_asking(draft_request._replace(request=unheard), 0.1)


def test_a_token_is_worth_less_where_steps_bring_several() -> None:
    source, token_ids = source_of(FakeHead()), [1, 2, 3]
    request = source.begin(RequestContext(token_ids))
    source.gain.learn(0.1, 0, 1e-3)
    draft_request = DraftRequest(request, 8, 4, token_s=1e-2)
    for slow in (True, False):
        for _ in range(10):
            root = len(token_ids) - 1
            token_ids += [20] if slow else [20, 20, 20, 20]
            request.observe(scored(root, DraftTree.chain([token_ids[root], *[20] * (0 if slow else 3)])))
        assert source.is_worth_asking(draft_request, 0.1) == slow, request.tokens_a_step
    assert request.tokens_a_step == pytest.approx(51 / 20, abs=0.3)


def test_a_drafter_asks_its_head_only_where_its_own_sources_are_unsure() -> None:
    model = FakeHead()
    source = source_of(model)
    source.gain.learn(0.9, 0, 1e-3)
    text = DraftedText(RetrievalDrafter(DraftConfig(max_nodes=8), [source]).wait(), [50, 51, 52, 53] * 8)

    def asked_after(token_id: int) -> bool:
        root, before = len(text.token_ids) - 1, len(model.asked)
        text.go_on([token_id], scored(root, DraftTree.root(text.token_ids[-1])))
        [tree] = text.drafter.draft([DraftRequest(text.request, 8, 4, token_s=5e-3)])
        assert isinstance(tree, DraftTree)
        return len(model.asked) > before

    assert not asked_after(50)  # the text goes round
    assert asked_after(20)  # which was never seen
