"""Look-ups in datastores equal a search through the whole corpus."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.drafting.kernels import datastore as kernels
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from tests.runtime.drafting.sources.datastore.datastore_check import check_structure
from tests.runtime.drafting.sources.datastore.datastore_reference import (
    NARROW,
    WIDE,
    Documents,
    build,
    longest_end,
    occurrences,
    successors,
)

few_tokens = st.sampled_from([0, 1, 2, 255, 256, NARROW - 1])
documents_of_few_tokens = st.lists(st.lists(few_tokens, min_size=1, max_size=40), min_size=1, max_size=8)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(documents_of_few_tokens, st.lists(few_tokens, max_size=12), st.sampled_from([NARROW, WIDE]))
def test_longest_match_and_successors_equal_a_search_through_all_documents(
    documents: Documents, context: list[int], vocab_size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        datastore = build(Path(folder) / "corpus.ds", documents, vocab_size)
        check_structure(datastore)
        _check_lookup(DatastoreSet([datastore]), documents, context)


@settings(max_examples=40, deadline=None)
@given(documents_of_few_tokens, st.lists(few_tokens, max_size=12), st.data())
def test_several_files_answer_like_one(documents: Documents, context: list[int], data: st.DataObject) -> None:
    num_files = data.draw(st.integers(1, min(4, len(documents))))
    with tempfile.TemporaryDirectory() as folder:
        parts = [documents[first::num_files] for first in range(num_files)]
        datastores = [build(Path(folder) / f"{number}.ds", part) for number, part in enumerate(parts)]
        _check_lookup(DatastoreSet(datastores), documents, context)


def _check_lookup(datastores: DatastoreSet, documents: Documents, context: list[int]) -> None:
    for max_length in (1, 3, 64):
        match = datastores.find(context, max_length)
        end = longest_end(documents, context, max_length)
        assert match.length == len(end)
        assert match.num_occurrences == (occurrences(documents, end) if end else 0)
        expected = successors(documents, end) if end else []
        assert datastores.count_successors(match) == expected
        if match.num_occurrences <= kernels.MAX_COUNTED:
            assert datastores.successors(match, 64) == expected
            assert datastores.successors(match, 2) == expected[:2]
        for token_id in (0, 256, NARROW - 1):
            child = datastores.narrow(match, token_id)
            assert child.num_occurrences == occurrences(documents, [*end, token_id])
            assert child.length == (len(end) + 1 if child.num_occurrences else 0)


def test_no_match_runs_from_one_document_into_the_next(tmp_path: Path) -> None:
    datastores = DatastoreSet([build(tmp_path / "corpus.ds", [[1, 2, 3], [4, 5]])])
    assert datastores.find([3, 4], 8).length == 1
    assert datastores.successors(datastores.find([2, 3], 8), 8) == []
    assert datastores.narrow(datastores.find([3], 8), 4).length == 0
    for end_mark in (0xFFFF, -1, 0x7FFFFFFF):
        assert datastores.narrow(datastores.find([3], 8), end_mark).length == 0
        assert datastores.find([3, end_mark], 8).length == 0


@pytest.mark.parametrize("vocab_size", [NARROW, WIDE])
def test_frequent_successors_of_frequent_matches_are_found_with_nearly_their_count(
    tmp_path: Path, vocab_size: int
) -> None:
    rng = np.random.default_rng(7)
    documents = np.minimum(rng.zipf(1.3, (40, 500)), NARROW - 1).tolist()
    datastore = build(tmp_path / "corpus.ds", documents, vocab_size)
    check_structure(datastore)
    datastores = DatastoreSet([datastore])
    for tokens in ([1], [2], [1, 1], [1, 2], [3, 1], [NARROW - 1], [1, 1, 1]):
        match = datastores.find(tokens, 8)
        assert match.length == len(tokens)
        assert match.num_occurrences == occurrences(documents, tokens)
        expected = dict(successors(documents, tokens))
        found = datastores.successors(match, kernels.MAX_GATHERED)
        gap = match.num_occurrences / kernels.MAX_COUNTED if match.num_occurrences > kernels.MAX_COUNTED else 0
        assert all(abs(count - expected[token_id]) <= gap + 1 for token_id, count in found)
        assert {token_id for token_id, count in expected.items() if count > gap + 1} <= {
            token_id for token_id, _ in found
        }
        assert datastores.count_successors(match) == successors(documents, tokens)
        assert found == sorted(found, key=lambda item: (-item[1], item[0]))


def test_without_files_nothing_is_found() -> None:
    datastores = DatastoreSet([])
    match = datastores.find([1, 2, 3], 8)
    assert (match.length, match.num_occurrences) == (0, 0)
    assert datastores.successors(match, 8) == []
    assert datastores.narrow(match, 1).length == 0


def test_an_empty_match_continues_with_any_token_of_the_corpus(tmp_path: Path) -> None:
    datastores = DatastoreSet([build(tmp_path / "corpus.ds", [[1, 2, 1]])])
    nothing = datastores.find([99], 8)
    assert (nothing.length, nothing.num_occurrences) == (0, 0)
    assert datastores.narrow(nothing, 1).num_occurrences == 2


def test_a_datastore_is_read_without_a_copy(tmp_path: Path) -> None:
    datastore = build(tmp_path / "corpus.ds", [[1, 2, 3]])
    assert not datastore.words.flags.owndata
    assert not datastore.words.flags.writeable
    assert Datastore.open(datastore.path).tokens.tolist() == [1, 2, 3, 0xFFFF]
