"""Look-ups in datastores equal a search through the whole corpus, also side by side; drafts move along with them."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.config import DraftConfig, GenerationConfig
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.kernels import datastore as kernels
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.layout import DATASTORE_STATE
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from tests.runtime.drafting.sources.datastore_reference import (
    NARROW,
    WIDE,
    Documents,
    build,
    check_structure,
    longest_end,
    occurrences,
    successors,
)
from tests.runtime.drafting.test_drafter import VOCAB_SIZE, decode, plain

few_tokens = st.sampled_from([0, 1, 2, 255, 256, NARROW - 1])
documents_of_few_tokens = st.lists(st.lists(few_tokens, min_size=1, max_size=40), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(documents_of_few_tokens, st.lists(few_tokens, max_size=12), st.sampled_from([NARROW, WIDE]), st.data())
def test_files_answer_as_a_search_through_all_documents_does(
    documents: Documents, context: list[int], vocab_size: int, data: st.DataObject
) -> None:
    num_files = data.draw(st.integers(1, min(4, len(documents))))
    with tempfile.TemporaryDirectory() as folder:
        parts = [documents[first::num_files] for first in range(num_files)]
        datastores = [build(Path(folder) / f"{number}.ds", part, vocab_size) for number, part in enumerate(parts)]
        for datastore in datastores:
            check_structure(datastore)
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
def test_frequent_successors_of_frequent_matches_have_nearly_their_count(tmp_path: Path, vocab_size: int) -> None:
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


def test_empty_matches_and_files_find_nothing(tmp_path: Path) -> None:
    datastores = DatastoreSet([])
    match = datastores.find([1, 2, 3], 8)
    assert (match.length, match.num_occurrences) == (0, 0)
    assert datastores.successors(match, 8) == []
    assert datastores.narrow(match, 1).length == 0
    datastores = DatastoreSet([build(tmp_path / "corpus.ds", [[1, 2, 1]])])
    nothing = datastores.find([99], 8)
    assert (nothing.length, nothing.num_occurrences) == (0, 0)
    assert datastores.narrow(nothing, 1).num_occurrences == 2


Answers = list[tuple[int, int, list[tuple[int, int]]]]


def _answers(datastores: DatastoreSet, seed: int) -> Answers:
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(300):
        match = datastores.find(np.minimum(rng.zipf(1.4, 6), 99).tolist(), 16)
        answers.append((match.length, match.num_occurrences, datastores.successors(match, 8)))
    return answers


def _corpus(path: Path) -> Datastore:
    return build(path, np.minimum(np.random.default_rng(1).zipf(1.4, (30, 300)), 99).tolist())


def test_threads_share_a_datastore_without_a_copy(tmp_path: Path) -> None:
    datastores = DatastoreSet([_corpus(tmp_path / "corpus.ds")])
    expected = _answers(datastores, 5)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(lambda _: _answers(datastores, 5), range(16)))
    datastore = build(tmp_path / "corpus.ds", [[1, 2, 3]])
    assert not datastore.words.flags.owndata
    assert not datastore.words.flags.writeable
    assert Datastore.open(datastore.path).tokens.tolist() == [1, 2, 3, 0xFFFF]


QUIET = DraftConfig(max_nodes=16, is_history_used=False, is_logits_used=False)


def test_a_text_of_the_corpus_is_drafted_from_where_the_prompt_ends(tmp_path: Path) -> None:
    document = list(range(100, 120))
    core = DraftingCore(QUIET, datastores=[build(tmp_path / "a.ds", [document, [7, 8, 9]])])
    request = core.begin([1, 2, 100, 101, 102])
    tree = request.draft(40, 8)
    node, num_followed = 0, 0
    for token_id in document[3:]:
        node = tree.child(node, token_id)
        if node < 0:
            break
        assert tree.sources[node] == "datastore"
        num_followed += 1
    assert num_followed >= 1
    request.observe([103, 104, 7, 8])
    tree = request.draft(40, 3)
    assert tree.child(0, 9) > 0
    assert tree.sources[tree.child(0, 9)] == "datastore"


def test_the_match_is_the_longest_wherever_the_text_goes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(4, size=60).tolist() for _ in range(6)]
    stores = [build(tmp_path / "a.ds", documents[:3]), build(tmp_path / "b.ds", documents[3:])]
    core = DraftingCore(QUIET, datastores=stores)
    text = random.integers(4, size=10).tolist()
    request = core.begin(text)
    for _ in range(80):
        token_ids = random.integers(4, size=int(random.integers(1, 4))).tolist()
        request.observe(token_ids)
        text += token_ids
        match = request._state[DATASTORE_STATE : DATASTORE_STATE + kernels.STATE]
        # After a mismatch a match is looked for among the last ORDER tokens; all longer ones grew from such.
        assert match[0] >= len(longest_end(documents, text, ORDER))
        assert sum(match[2::2] - match[1::2]) == occurrences(documents, text[len(text) - match[0] :])


def test_drafts_from_a_datastore_change_no_token(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    prompts = [random.integers(VOCAB_SIZE, size=n).tolist() for n in (3, 9, 20)]
    config = GenerationConfig(max_tokens=60)
    wanted = plain(prompts, config)
    documents = [prompt + answer[:40] for prompt, answer in zip(prompts, wanted, strict=True)]
    nonsense = [random.integers(VOCAB_SIZE, size=200).tolist()]
    datastores = [
        build(tmp_path / f"{number}.ds", each, VOCAB_SIZE) for number, each in enumerate((documents, nonsense))
    ]
    for max_nodes in (4, 24):
        drafter = RetrievalDrafter(DraftConfig(max_nodes=max_nodes), datastores=datastores).wait()
        assert decode(drafter, prompts, config) == wanted
