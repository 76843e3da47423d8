"""A further source: called for all requests at once, with what the target scored, and alone with its faults."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import Arrays, DraftSource
from reader_edge_runtime.errors import ConfigError, DraftError
from tests.drafted_text import VOCAB_SIZE, DraftedText, EchoRequest, EchoSource, make_drafter, scored_root


@contextmanager
def collection_off() -> Iterator[None]:
    """Only counted references are freed: a cycle stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def begin_three(drafter: RetrievalDrafter) -> list[DraftedText]:
    return [DraftedText(drafter, [first, 7, 8, 9]) for first in (1, 2, 3)]


def draft_all(drafter: RetrievalDrafter, texts: Sequence[DraftedText]) -> list[DraftTree | DraftError]:
    drafts = drafter.draft([DraftRequest(text.request, 8, 4) for text in texts])
    assert all(isinstance(each, DraftTree | DraftError) for each in drafts)
    return cast(list[DraftTree | DraftError], drafts)


def test_all_requests_of_a_step_are_drafted_at_once_and_each_gets_its_own_proposal() -> None:
    source = EchoSource()
    drafter = make_drafter(source)
    trees = draft_all(drafter, begin_three(drafter))
    assert source.batch_sizes == [3]
    for first, tree in zip((1, 2, 3), trees, strict=True):
        assert isinstance(tree, DraftTree)
        node = tree.child(0, 500 + first)
        assert tree.sources[node] == "echo"
        assert {500 + other for other in (1, 2, 3)} & set(tree.token_ids) == {500 + first}


def test_hidden_states_reach_the_request_whose_nodes_they_are_of() -> None:
    source = EchoSource()
    drafter = make_drafter(source)
    assert drafter.wants_hidden_states
    texts = begin_three(drafter)
    for text in (texts[0], texts[2], texts[0]):
        text.go_on([10 + text.token_ids[0]], scored_root(text, [4, 5], [text.token_ids[0], len(text.token_ids)]))
    draft_all(drafter, texts)
    seen = [[each.hidden_states for each in request.observed] for request in source.requests]
    assert [[each.tolist() for each in states if each is not None] for states in seen] == [
        [[[1.0, 4.0]], [[1.0, 5.0]]],
        [],
        [[[3.0, 4.0]]],
    ]
    assert source.requests[0].observed[1].root == 4


@pytest.mark.parametrize("fault", ["begin", "observe", "propose", "proposal"])
def test_a_fault_of_one_request_leaves_the_others_their_trees_and_keeps_no_drafter(fault: str) -> None:
    drafter = make_drafter(EchoSource(faulty=2, fault=fault))
    texts = begin_three(drafter)
    for text in texts:
        text.go_on([7], scored_root(text, [4, 5]))
    first, failed, third = draft_all(drafter, texts)
    assert isinstance(failed, DraftError)
    assert "'echo'" in str(failed)
    assert isinstance(failed.__cause__, ZeroDivisionError) == (fault != "proposal")
    for number, tree in ((1, first), (3, third)):
        assert isinstance(tree, DraftTree)
        assert tree.child(0, 500 + number) > 0
    assert "Traceback" in failed.__notes__[0]
    ended = weakref.ref(drafter)
    with collection_off():
        del drafter, texts, text
        assert ended() is None


@pytest.mark.parametrize("error", [DraftError("of its own"), ZeroDivisionError("forgot")])
def test_a_source_that_fails_to_forget_keeps_no_drafter(error: Exception) -> None:
    source = EchoSource()

    def failing(arrays: Arrays) -> None:
        raise type(error)(*error.args)

    source.restore = failing  # type: ignore[method-assign]  # a source that cannot forget
    drafter = make_drafter(source)
    ended = weakref.ref(drafter)
    with collection_off():
        with pytest.raises(DraftError, match=str(error)):
            drafter.forget()
        del drafter
        assert ended() is None


def test_a_source_that_answers_too_few_is_at_fault_with_all() -> None:
    source = EchoSource()
    source.propose = lambda draft_requests: []  # type: ignore[method-assign]  # a source that forgets its requests
    drafter = make_drafter(source)
    assert all("gave 0 proposals" in str(each) for each in draft_all(drafter, begin_three(drafter)))


def test_more_sources_than_can_be_mixed_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"At most 5 sources .* got tools, a, b, c, d, e"):
        RetrievalDrafter(DraftConfig(), [EchoSource(name=name) for name in "abcde"])


@pytest.mark.parametrize("name", ["echo", "tools", "context"])
def test_two_sources_of_one_name_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"two sources named '{name}'"):
        RetrievalDrafter(DraftConfig(), [EchoSource(), EchoSource(name=name)])


def test_as_many_sources_as_can_be_mixed_are_all_drafted_from() -> None:
    class Other(EchoSource):
        """Has something to say of texts alone that begin with its own letter."""

        def begin(self, context: RequestContext) -> EchoRequest | None:
            return super().begin(context) if context.token_ids[0] == ord(self.name) else None

    drafter = RetrievalDrafter(DraftConfig(max_nodes=16), [Other(name=name) for name in "abcd"]).wait()
    for name in "abcd":
        tree = DraftedText(drafter, [ord(name), 2, 3]).draft(16, 4)
        assert tree.sources[tree.child(0, 500 + ord(name))] == name


@pytest.mark.parametrize("token_id", [-1, -(2**31), VOCAB_SIZE, 2**31, 2**63 - 1])
@pytest.mark.parametrize("column", [0, 1, 3])
def test_ids_that_a_target_may_not_name_never_reach_compiled_code(token_id: int, column: int) -> None:
    top_ids = [4, 5, 6, 7]
    top_ids[column] = token_id
    text = DraftedText(make_drafter(EchoSource()), [1, 2])
    with pytest.raises(DraftError, match=rf"token id {token_id} .* the vocabulary has 1000"):
        scored_root(text, top_ids)


@pytest.mark.parametrize("shape", [(1, 3), (2, 4), (1,)])
def test_logits_of_another_shape_than_their_ids_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DraftError, match="shape"):
        ScoredTree(DraftTree.root(1), range(1), 0, np.zeros((1, 4), np.int64), np.zeros(shape, np.float32), VOCAB_SIZE)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_leave_drafts_sound(value: float) -> None:
    text = DraftedText(make_drafter(EchoSource()), [1, 2, 3])
    for _ in range(5):
        scored = scored_root(text, [4, 5, 3])
        scored.top_logits[:] = value
        text.go_on([3], scored)
        tree = text.draft(8, 4)
        tree.check(3, VOCAB_SIZE, 8)
        assert np.isfinite(tree.values).all()


class PlainSource(DraftSource):
    """Proposes nothing, and leaves the rest as the seam has it. is_faulty: then its requests fail to end."""

    name = "plain"

    def __init__(self, is_faulty: bool = False) -> None:
        self.is_faulty = is_faulty

    def begin(self, context: RequestContext) -> RequestDrafter:
        class Request(RequestDrafter):
            def finish(request) -> None:  # noqa: N805 (the source is meant by self)
                if self.is_faulty:
                    raise ZeroDivisionError("ended")

        return Request(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        return [None] * len(draft_requests)


def test_a_source_that_learns_nothing_is_saved_and_taken_up_beside_others() -> None:
    drafter = RetrievalDrafter(DraftConfig(), [PlainSource(), EchoSource()]).wait()
    state = drafter.state()
    assert not [name for name in state if "plain" in name]
    drafter.restore(state, VOCAB_SIZE)
    assert all(isinstance(tree, DraftTree) for tree in draft_all(drafter, begin_three(drafter)))


def test_a_source_that_fails_when_an_answer_ends_costs_a_warning_and_no_answer() -> None:
    drafter = RetrievalDrafter(DraftConfig(), [PlainSource(is_faulty=True)]).wait()
    text, *_ = begin_three(drafter)
    with pytest.warns(UserWarning, match=r"plain.*ended"):
        text.request.finish()


@pytest.mark.parametrize(
    "tree",
    [
        *(DraftTree.root(8), DraftTree([9, 5], [0, 0], ["", ""]), DraftTree([9], [-1], [""], [0.5])),
        *(DraftTree([9, 5], [-1], ["", ""]), DraftTree([], [], [])),
    ],
)
def test_a_proposal_that_does_not_begin_with_the_last_token_is_refused(tree: DraftTree) -> None:
    with pytest.raises(DraftError, match="Source 'plain' proposed"):
        check_proposal(tree, 9, "plain")
