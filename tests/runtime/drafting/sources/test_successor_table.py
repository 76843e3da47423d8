"""A package's successor table is where recording begins, and believed only where it can be its own."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime.array_file import MAX_BYTES
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.kernels.successors import NUMBERS
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest
from tests.fuzz.memory_limit import memory_limit
from tests.runtime.drafting.integrity import after, check_successors

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
def test_a_table_is_recorded_as_if_the_target_had_just_said_it(top_k: int) -> None:
    table = random_table(top_k=top_k)
    store, expected = SuccessorStore(16, table), SuccessorStore(16)
    roots = DraftTree(list(range(VOCAB_SIZE)), [-1] * VOCAB_SIZE, [""] * VOCAB_SIZE)
    said = table.token_ids.astype(np.int64), table.logits
    expected.learn(ScoredTree(roots, range(VOCAB_SIZE), 0, *said, VOCAB_SIZE), [])
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
def test_a_table_that_no_package_could_have_is_refused(
    tmp_path: Path, spoil: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> None:
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
