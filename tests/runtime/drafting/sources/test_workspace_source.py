"""Drafts from texts that are given: look-ups equal a plain reference, copies are followed and found again."""

from collections.abc import Sequence

import numpy as np
import pytest

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.workspace.index import KEY, LONGEST, TextIndex
from reader_edge_runtime.drafting.sources.workspace.source import WorkspaceSource
from tests.drafted_text import DraftedText

FILE = list(range(100, 200))


def array(token_ids: Sequence[int]) -> Int32Array:
    return np.array(token_ids, np.int32)


def source_of(*texts: Sequence[int]) -> WorkspaceSource:
    source = WorkspaceSource()
    source.index = TextIndex([array(text) for text in texts])
    return source


def proposal(source: WorkspaceSource, prompt: Sequence[int], answer: Sequence[Sequence[int]] = ()) -> DraftTree | None:
    """What is proposed behind an answer that came in these pieces."""
    token_ids = list(prompt)
    request = source.begin(RequestContext(token_ids))
    for piece in answer:
        source.propose([DraftRequest(request, 64, 8)])
        token_ids += piece
    [tree] = source.propose([DraftRequest(request, 64, 8)])
    return tree


def first_path(tree: DraftTree | None) -> list[int]:
    return [] if tree is None else tree.token_ids[1:9]


@pytest.mark.parametrize("seed", range(20))
def test_places_are_those_of_a_plain_search(seed: int) -> None:
    random = np.random.default_rng(seed)
    texts = [array(random.integers(0, 3, size=random.integers(0, 30)).tolist()) for _ in range(5)]
    index = TextIndex(texts)
    recent = array(random.integers(0, 3, size=random.integers(1, 12)).tolist())
    expected, begin = [(0, 1)], 1
    for text in texts:
        for end in range(KEY, len(text)):
            length = 0
            while length < min(end, len(recent)) and text[end - 1 - length] == recent[-1 - length]:
                length += 1
            if length >= KEY:
                expected.append((length, begin + end))
        begin += len(text) + 1
    length, place = max(expected)
    assert index.find(recent) == ((place, length) if length else (-1, 0))


def test_a_text_that_stands_in_a_file_is_drafted_from_it() -> None:
    tree = proposal(source_of(FILE), [1, 2, *FILE[10:20]])
    assert first_path(tree) == FILE[20:28]
    assert first_path(proposal(source_of(FILE), [1, 2, *FILE[10:13]])) == []


def test_the_longest_match_comes_first_and_of_equal_ones_the_last_text() -> None:
    older, newer = [1, 2, 3, 4, 5, 60], [9, 2, 3, 4, 5, 70]
    assert first_path(proposal(source_of(older, newer), [8, 2, 3, 4, 5]))[0] == 70
    assert first_path(proposal(source_of(older, newer), [1, 2, 3, 4, 5]))[0] == 60


def test_a_copy_goes_on_behind_a_changed_token() -> None:
    tree = proposal(source_of(FILE), FILE[:10], [FILE[10:20], [7]])
    assert first_path(tree) == FILE[21:29]


def test_a_copy_goes_on_behind_tokens_that_were_put_in_or_left_out() -> None:
    assert first_path(proposal(source_of(FILE), FILE[:10], [FILE[10:20], [7, 8, 9], FILE[20:22]])) == FILE[22:30]
    assert first_path(proposal(source_of(FILE), FILE[:10], [FILE[10:20], FILE[30:32]])) == FILE[32:40]


def test_a_draft_ends_with_its_file() -> None:
    tree = proposal(source_of(FILE, [5, 6, 7, 8]), FILE[:97])
    assert first_path(tree) == FILE[97:]
    assert first_path(proposal(source_of(FILE), FILE)) == []


def test_a_request_drafts_from_the_files_as_they_are_now() -> None:
    source = source_of(FILE)
    token_ids = FILE[:10]
    request = source.begin(RequestContext(token_ids))
    assert first_path(source.propose([DraftRequest(request, 64, 8)])[0]) == FILE[10:18]
    source.index = TextIndex([array([*FILE[:10], *range(500, 520)])])
    assert first_path(source.propose([DraftRequest(request, 64, 8)])[0]) == list(range(500, 508))
    source.index = TextIndex()
    assert source.propose([DraftRequest(request, 64, 8)]) == [None]


def test_a_drafter_drafts_from_it_and_learns_what_its_word_is_worth() -> None:
    source = source_of(FILE)
    text = DraftedText(RetrievalDrafter(DraftConfig(max_nodes=16), [source]).wait(), [1, *FILE[:8]])
    sure = []
    for begin in range(8, 72, 8):
        tree = text.draft(9, 8)
        node = tree.child(0, FILE[begin])
        assert tree.sources[node] == "workspace"
        sure.append(tree.values[node])
        text.go_on(FILE[begin : begin + 8])
    assert text.draft(9, 8).token_ids[1:] == FILE[72:80]
    assert sure[-1] > sure[0]


def test_it_knows_whether_requests_are_answered() -> None:
    source = source_of(FILE)
    assert not source.is_used
    ended, cancelled = source.begin(RequestContext([1, 2])), source.begin(RequestContext([1, 2]))
    ended.finish()
    assert source.is_used
    del cancelled
    assert not source.is_used


@pytest.mark.parametrize("num_tokens", range(KEY + 3))
def test_short_texts_and_prompts_are_no_fault(num_tokens: int) -> None:
    few = list(range(num_tokens))
    assert first_path(proposal(source_of(few, [], few), few or [0])) == []
    assert len(TextIndex([array(few)] * 3).tokens) == 3 * num_tokens + 4
    assert first_path(proposal(source_of(FILE), few or [0], [few] * LONGEST)) == []
