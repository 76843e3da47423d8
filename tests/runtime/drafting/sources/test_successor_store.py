"""Successors recorded from logits equal a dict of the latest ones; a package's table is where recording begins."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from reader_edge_runtime.array_file import MAX_BYTES
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.kernels.layout import CLASSES
from reader_edge_runtime.drafting.kernels.successors import (
    FIRST_NAMED_CLASS,
    MAX_SUCCESSORS,
    NUMBERS,
    PAIR_SHARE,
    TOKEN_SHARE,
    class_of,
)
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore, SuccessorTable
from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest
from tests.fuzz.mutation import memory_limit
from tests.hybrid_states import random_tree
from tests.runtime.drafting.integrity import after, check_successors

Reference = dict[tuple[int, ...], dict[int, float]]


def keys(tree: DraftTree, node: int, before_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The token of a node, and the pair that ends with it."""
    token_id, parent = tree.token_ids[node], tree.parents[node]
    before = tree.token_ids[parent] if parent >= 0 else (before_ids[-1] if before_ids else -1)
    return [(token_id,)] if before < 0 else [(token_id,), (before, token_id)]


def learn_one(store: SuccessorStore, before: int, token: int, top_ids: ArrayLike, top_logits: ArrayLike) -> None:
    """Record what the target scored after `token` behind `before`."""
    rows = np.array([top_ids], np.int64), np.array([top_logits], np.float32)
    store.learn(ScoredTree(DraftTree.root(token), range(1), 1, *rows, vocab_size=100_000), [before])


def learn_plainly(reference: Reference, key: tuple[int, ...], top_ids: np.ndarray, top_logits: np.ndarray) -> None:
    weights = np.exp(top_logits[:MAX_SUCCESSORS] - top_logits[0])
    latest = dict(zip(top_ids[:MAX_SUCCESSORS].tolist(), (weights / weights.sum()).tolist(), strict=True))
    share = (TOKEN_SHARE if len(key) == 1 else PAIR_SHARE) if key in reference else 1
    before = reference.get(key, {})
    both = {**before, **latest}
    reference[key] = {each: (1 - share) * before.get(each, 0) + share * latest.get(each, 0) for each in both}


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), vocab_size=st.sampled_from([2, 30, 3000]), top_k=st.sampled_from([1, 5, 8]))
def test_records_follow_what_the_target_says(seed: int, vocab_size: int, top_k: int) -> None:
    random = np.random.default_rng(seed)
    store, reference = SuccessorStore(1 << 14), Reference()
    for _ in range(30):
        tree = random_tree(random, int(random.integers(1, 20)), vocab_size)
        rows = range(int(random.integers(len(tree))), len(tree))
        before_ids = random.integers(vocab_size, size=int(random.integers(3))).tolist()
        top_ids = np.array([random.permutation(MAX_SUCCESSORS)[:top_k] for _ in rows], np.int64)
        top_logits = -np.sort(6 * random.random((len(rows), top_k))).astype(np.float32)
        store.learn(ScoredTree(tree, rows, len(before_ids), top_ids, top_logits, 3000), before_ids)
        for row, node in enumerate(rows):
            for key in keys(tree, node, before_ids):
                learn_plainly(reference, key, top_ids[row], top_logits[row])
    check_successors(store)
    for key, expected in reference.items():
        found = after(store, *key)
        assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
        assert dict(found) == pytest.approx({token_id: expected[token_id] for token_id, _ in found}, abs=0.01)
        assert all(token_id in dict(found) for token_id, p in expected.items() if p > 0.02)


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), max_pairs=st.sampled_from([1, 5, 64]))
def test_a_full_table_forgets_pairs_and_never_confuses_them(seed: int, max_pairs: int) -> None:
    random = np.random.default_rng(seed)
    store, pairs = SuccessorStore(max_pairs), set()
    for before, token in random.integers(40, size=(400, 2)).tolist():
        ids = 1000 * before + 10 * token + random.permutation(10)[:6]
        learn_one(store, before, token, ids, np.zeros(6))
        pairs.add((before, token))
        assert {token_id // 10 for token_id, _ in after(store, before, token)} == {100 * before + token}
    check_successors(store)
    found = {(a, b): after(store, a, b) for a in range(40) for b in range(40)}
    for (a, b), named in found.items():
        assert all(token_id // 10 == 100 * a + b for token_id, _ in named)
        assert not named or (a, b) in pairs
    assert 0 < sum(map(bool, found.values())) <= len(store.arrays.after_pair) < len(pairs)


def test_what_the_target_no_longer_says_fades() -> None:
    store = SuccessorStore(16)
    for first in [0, *[10] * 12]:
        learn_one(store, 2, 3, np.arange(8) + first, np.linspace(2, 0, 8))
    assert [token_id for token_id, _ in after(store, 3)] == [*range(10, 18)]
    assert [token_id for token_id, _ in after(store, 2, 3)] == [*range(10, 18)]


def test_a_full_set_drops_its_oldest_pair() -> None:
    store = SuccessorStore(1)  # one set
    num_ways = len(store.arrays.after_pair)
    for before in [*range(num_ways), 0, 90]:
        learn_one(store, before, 7, [before], [0.0])
    assert after(store, 1, 7) == []
    assert [after(store, before, 7)[0][0] for before in (0, *range(2, num_ways), 90)] == [0, *range(2, num_ways), 90]


def test_classes_tell_rank_and_probability_and_unlikely_tokens_are_left_out() -> None:
    store = SuccessorStore(16)
    learn_one(store, 2, 3, [10, 11, 12, 13], np.log([0.9, 0.09, 0.0099, 0.0001]))
    learn_one(store, 2, 4, [10, 11, 12, 13], np.zeros(4))
    sharp_ids, sharp = zip(*after(store, 2, 3), strict=True)
    assert sharp_ids == (10, 11, 12)
    assert sharp == pytest.approx((0.9, 0.09, 0.0099), abs=1e-3)
    records = [store.arrays.after_token[3], store.arrays.after_token[4]]
    classes = {class_of(record, rank, same) for record in records for rank in range(3) for same in (0, 1)}
    assert len(classes) == 12
    assert min(classes) >= FIRST_NAMED_CLASS
    assert max(classes) < CLASSES


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_odd_logits_do_no_harm(value: float) -> None:
    store = SuccessorStore(16)
    learn_one(store, 2, 3, [10, 11, 12], [value, 0.0, value])
    assert all(token_id in (10, 11, 12) and 0 <= p <= 1 for token_id, p in after(store, 2, 3))


def test_the_target_s_successors_are_drafted_until_they_are_forgotten() -> None:
    core = DraftingCore(DraftConfig(max_nodes=8))
    top_ids, logits = np.array([[20, 21], [30, 31]]), np.array([[3.0, 1.0], [4.0, 0.0]], np.float32)
    core.successors.learn(ScoredTree(DraftTree.chain([5, 20]), range(2), 1, top_ids, logits, 32), [4])
    tree = core.begin([9, 4, 5]).draft(8, 4)
    assert {20, 21} <= set(tree.token_ids)
    assert tree.sources[tree.child(0, 20)] == tree.sources[tree.child(0, 21)] == "logits"
    assert max(tree.values[1:]) == tree.values[tree.child(0, 20)]
    assert 20 not in DraftingCore(DraftConfig(max_nodes=8)).begin([9, 4, 5]).draft(8, 4).token_ids


def test_nothing_is_recorded_where_the_source_is_off() -> None:
    core = DraftingCore(DraftConfig(is_logits_used=False))
    learn_one(core.successors, 4, 5, [20], [0.0])
    assert core.begin([4, 5]).draft(8, 4).token_ids[1:].count(20) == 0
    assert sum(array.nbytes for array in core.successors.arrays) < 1000


Arrays = tuple[np.ndarray, np.ndarray]


FINGERPRINT = "ab" * 32
VOCAB_SIZE = 40


def random_table(num_tokens: int = VOCAB_SIZE, top_k: int = 8) -> SuccessorTable:
    """Rows from certain to undecided."""
    random = np.random.default_rng(num_tokens)
    ids = np.stack([random.permutation(VOCAB_SIZE)[:top_k] for _ in range(num_tokens)]).astype(np.int32)
    logits = random.standard_normal((num_tokens, top_k)) * np.linspace(0.1, 9, num_tokens)[:, None]
    return SuccessorTable(ids, -np.sort(-logits, axis=1).astype(np.float32))


def package_with(folder: Path, table: SuccessorTable) -> ModelPackage:
    table.write(folder / SUCCESSORS_NAME, FINGERPRINT)
    files = {SUCCESSORS_NAME: file_entry(folder / SUCCESSORS_NAME)}
    return ModelPackage(folder, replace(make_manifest(), vocab_size=VOCAB_SIZE, top_k=8, files=files))


@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_a_table_is_recorded_as_if_it_had_just_been_scored(top_k: int) -> None:
    table = random_table(top_k=top_k)
    store, expected = SuccessorStore(16, table), SuccessorStore(16)
    roots = DraftTree(list(range(VOCAB_SIZE)), [-1] * VOCAB_SIZE, [""] * VOCAB_SIZE)
    latest = table.token_ids.astype(np.int64), table.logits
    expected.learn(ScoredTree(roots, range(VOCAB_SIZE), 0, *latest, VOCAB_SIZE), [])
    check_successors(store)
    recorded, learned = store.arrays.after_token, expected.arrays.after_token
    np.testing.assert_array_equal(recorded[:, :NUMBERS], learned[:, :NUMBERS])
    numbers = [records[:, NUMBERS:].view(np.uint16).astype(int) for records in (recorded, learned)]
    assert np.abs(numbers[0] - numbers[1]).max() <= 1


def test_what_a_text_teaches_moves_the_table() -> None:
    table = random_table()
    store = SuccessorStore(16, table)
    best, other = table.token_ids[5, :2].tolist()
    before = dict(after(store, 5))
    for _ in range(6):
        rows = np.array([[other]], np.int64), np.zeros((1, 1), np.float32)
        store.learn(ScoredTree(DraftTree.root(5), range(1), 1, *rows, VOCAB_SIZE), [7])
    assert after(store, 5)[0][0] == other
    assert dict(after(store, 5))[best] < before[best]
    assert after(store, 6) == after(SuccessorStore(16, table), 6)


def test_tables_longer_than_the_first_rows_have_room() -> None:
    random = np.random.default_rng(0)
    table = SuccessorTable(random.integers(0, 3000, (3000, 1)).astype(np.int32), np.zeros((3000, 1), np.float32))
    store = SuccessorStore(16, table)
    assert [after(store, token)[0][0] for token in (0, 1023, 1024, 2999)] == table.token_ids[
        [0, 1023, 1024, 2999], 0
    ].tolist()


def test_a_first_request_is_drafted_from_the_table_and_so_is_the_next_after_forgetting() -> None:
    table = random_table()
    drafter = RetrievalDrafter(DraftConfig(), table=table).wait()
    for _ in range(2):
        draft_request = DraftRequest(drafter.begin(RequestContext([3, VOCAB_SIZE - 1])), 4, 3)
        (tree,) = drafter.draft([draft_request])
        assert isinstance(tree, DraftTree)
        assert tree.token_ids[1] == table.token_ids[VOCAB_SIZE - 1, 0]
        assert tree.sources[1] == "logits"
        drafter.forget()


def test_without_logits_the_table_rests() -> None:
    drafter = RetrievalDrafter(DraftConfig(is_logits_used=False), table=random_table()).wait()
    (tree,) = drafter.draft([DraftRequest(drafter.begin(RequestContext([3, VOCAB_SIZE - 1])), 4, 3)])
    assert isinstance(tree, DraftTree)
    assert "logits" not in tree.sources


def test_a_package_gives_back_its_table(tmp_path: Path) -> None:
    table = random_table()
    found = SuccessorTable.of_package(package_with(tmp_path, table), FINGERPRINT)
    assert found is not None
    np.testing.assert_array_equal(found.token_ids, table.token_ids)
    np.testing.assert_array_equal(found.logits, table.logits)
    assert SuccessorTable.of_package(ModelPackage(tmp_path, make_manifest()), FINGERPRINT) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ids, logits: (ids.astype(np.int64), logits),
        lambda ids, logits: (ids, logits.astype(np.float64)),
        lambda ids, logits: (ids[0], logits[0]),
        lambda ids, logits: (ids[1:], logits),
        lambda ids, logits: (ids[:, :0], logits[:, :0]),
        lambda ids, logits: (np.concatenate([ids, ids], axis=1)[:20], np.repeat(logits, 2, axis=1)[:20]),
        lambda ids, logits: (np.concatenate([ids, ids]), np.concatenate([logits, logits])),
        lambda ids, logits: (np.full_like(ids, VOCAB_SIZE), logits),
        lambda ids, logits: (np.full_like(ids, -1), logits),
        lambda ids, logits: (ids[:, [0, 1, 2, 3, 4, 5, 6, 2]], logits),
        lambda ids, logits: (ids, np.full_like(logits, np.nan)),
        lambda ids, logits: (ids, np.full_like(logits, np.inf)),
        lambda ids, logits: (ids, logits[:, ::-1].copy()),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, spoil: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    table = random_table()
    package = package_with(tmp_path, SuccessorTable(*spoil(table.token_ids, table.logits)))
    with pytest.raises(PackageError, match="export the model again"):
        SuccessorTable.of_package(package, FINGERPRINT)


def test_a_file_that_is_no_table_or_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    package = package_with(tmp_path, random_table())
    with pytest.raises(PackageError, match="export the model again"):
        SuccessorTable.of_package(package, "cd" * 32)
    (tmp_path / SUCCESSORS_NAME).write_bytes(b"nothing of the kind")
    with pytest.raises(PackageError, match="export the model again"):
        SuccessorTable.of_package(package, FINGERPRINT)


def test_a_file_larger_than_a_table_of_the_vocabulary_is_refused_unread(tmp_path: Path) -> None:
    package = package_with(tmp_path, random_table())
    os.truncate(tmp_path / SUCCESSORS_NAME, MAX_BYTES)
    with memory_limit(256 << 20), pytest.raises(PackageError, match="export the model again"):
        SuccessorTable.of_package(package, FINGERPRINT)
