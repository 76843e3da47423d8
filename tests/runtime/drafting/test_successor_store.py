"""Successors recorded from logits equal a dict of what was said last, and a pair is never taken for another."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.kernels.successors import FIRST_NAMED_CLASS, MAX_SUCCESSORS
from reader_edge_runtime.drafting.successor_store import SuccessorStore

Reference = dict[tuple[int, ...], list[int]]


def random_tree(random: np.random.Generator, vocab_size: int, num_nodes: int) -> DraftTree:
    tree = DraftTree.root(int(random.integers(vocab_size)))
    for _ in range(num_nodes - 1):
        tree.add(int(random.integers(vocab_size)), int(random.integers(len(tree))), "random")
    return tree


def learn_plainly(
    reference: Reference, tree: DraftTree, rows: range, before_ids: Sequence[int], top_ids: np.ndarray
) -> None:
    for row, node in enumerate(rows):
        token_id, parent = tree.token_ids[node], tree.parents[node]
        before = tree.token_ids[parent] if parent >= 0 else (before_ids[-1] if before_ids else -1)
        reference[token_id,] = top_ids[row, :MAX_SUCCESSORS].tolist()
        if before >= 0:
            reference[before, token_id] = top_ids[row, :MAX_SUCCESSORS].tolist()


def fill(
    seed: int, vocab_size: int, max_pairs: int, top_k: int, num_trees: int = 30
) -> tuple[SuccessorStore, Reference]:
    random = np.random.default_rng(seed)
    store, reference = SuccessorStore(max_pairs), Reference()
    for _ in range(num_trees):
        tree = random_tree(random, vocab_size, int(random.integers(1, 20)))
        rows = range(int(random.integers(len(tree))), len(tree))
        before_ids = random.integers(vocab_size, size=int(random.integers(3))).tolist()
        top_ids = np.array([random.permutation(max(vocab_size, top_k))[:top_k] for _ in rows], np.int64)
        top_logits = -np.sort(random.random((len(rows), top_k))).astype(np.float32)
        store.learn(tree, rows, before_ids, top_ids, top_logits)
        learn_plainly(reference, tree, rows, before_ids, top_ids)
    return store, reference


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), vocab_size=st.sampled_from([2, 30, 3000]), top_k=st.sampled_from([1, 5, 12]))
def test_the_last_word_of_the_target_is_remembered(seed: int, vocab_size: int, top_k: int) -> None:
    store, reference = fill(seed, vocab_size, 1 << 14, top_k)
    for key, named in reference.items():
        assert [token_id for token_id, _ in store.after(*key)] == named


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), max_pairs=st.sampled_from([1, 5, 64]))
def test_a_full_table_forgets_pairs_and_never_confuses_them(seed: int, max_pairs: int) -> None:
    store, reference = fill(seed, 40, max_pairs, 6, num_trees=60)
    pairs = [key for key in reference if len(key) == 2]
    found = {key: [token_id for token_id, _ in store.after(*key)] for key in pairs}
    assert all(named in ([], reference[key]) for key, named in found.items())
    assert 0 < sum(map(bool, found.values())) <= len(store.after_pair) < len(pairs)
    unseen = [(a, b) for a in range(40) for b in range(40) if (a, b) not in reference]
    assert not any(store.after(*pair) for pair in unseen)


def test_a_full_set_drops_its_oldest_pair() -> None:
    store = SuccessorStore(1)  # one set
    num_ways = len(store.after_pair)
    logits = np.zeros((1, 1), np.float32)
    for before in [*range(num_ways), 0, 90]:
        store.learn(DraftTree.root(7), range(1), [before], np.array([[before]]), logits)
    assert store.after(1, 7) == []
    assert [store.after(before, 7)[0][0] for before in (0, *range(2, num_ways), 90)] == [0, *range(2, num_ways), 90]


def test_classes_tell_rank_and_probability_and_unlikely_tokens_are_left_out() -> None:
    store = SuccessorStore(16)
    logits = np.log(np.array([[0.9, 0.09, 0.0099, 0.0001]], np.float32))
    store.learn(DraftTree.root(3), range(1), [2], np.array([[10, 11, 12, 13]]), logits)
    flat = np.zeros((1, 4), np.float32)
    store.learn(DraftTree.root(4), range(1), [2], np.array([[10, 11, 12, 13]]), flat)
    sharp_ids, sharp = zip(*store.after(2, 3), strict=True)
    assert sharp_ids == (10, 11, 12)
    assert len({*sharp, *(number for _, number in store.after(2, 4))}) == 7
    assert min(sharp) >= FIRST_NAMED_CLASS


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_odd_logits_do_no_harm(value: float) -> None:
    store = SuccessorStore(16)
    logits = np.array([[value, 0.0, value]], np.float32)
    store.learn(DraftTree.root(3), range(1), [2], np.array([[10, 11, 12]]), logits)
    assert all(token_id in (10, 11, 12) and 0 <= number < 256 for token_id, number in store.after(2, 3))


def test_what_the_target_said_is_drafted_until_it_is_forgotten() -> None:
    core = DraftingCore(DraftConfig(max_nodes=8))
    top_ids, logits = np.array([[20, 21], [30, 31]]), np.array([[3.0, 1.0], [4.0, 0.0]], np.float32)
    core.successors.learn(DraftTree.chain([5, 20]), range(2), [4], top_ids, logits)
    tree = core.begin([9, 4, 5]).draft(8, 4)
    assert {20, 21} <= set(tree.token_ids)
    assert tree.sources[tree.child(0, 20)] == tree.sources[tree.child(0, 21)] == "logits"
    assert max(tree.values[1:]) == tree.values[tree.child(0, 20)]
    assert 20 not in DraftingCore(DraftConfig(max_nodes=8)).begin([9, 4, 5]).draft(8, 4).token_ids


def test_nothing_is_recorded_where_the_source_is_off() -> None:
    core = DraftingCore(DraftConfig(is_logits_used=False))
    core.successors.learn(DraftTree.root(5), range(1), [4], np.array([[20]]), np.zeros((1, 1), np.float32))
    assert core.begin([4, 5]).draft(8, 4).token_ids[1:].count(20) == 0
    assert core.successors.num_bytes < 1000
