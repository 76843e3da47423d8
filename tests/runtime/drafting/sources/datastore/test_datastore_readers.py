"""Concurrent readers of one datastore agree."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from tests.runtime.drafting.sources.datastore.datastore_reference import build

Answers = list[tuple[int, int, list[tuple[int, int]]]]


def _answers(datastores: DatastoreSet, seed: int) -> Answers:
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(300):
        match = datastores.find(np.minimum(rng.zipf(1.4, 6), 99).tolist(), 16)
        answers.append((match.length, match.num_occurrences, datastores.successors(match, 8)))
    return answers


def _answers_of_file(path: Path, seed: int) -> Answers:
    return _answers(DatastoreSet([Datastore.open(path)]), seed)


def _corpus(path: Path) -> Datastore:
    return build(path, np.minimum(np.random.default_rng(1).zipf(1.4, (30, 300)), 99).tolist())


def test_threads_that_share_a_datastore_agree(tmp_path: Path) -> None:
    datastores = DatastoreSet([_corpus(tmp_path / "corpus.ds")])
    expected = _answers(datastores, 5)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(lambda _: _answers(datastores, 5), range(16)))


def test_processes_that_open_one_file_agree(tmp_path: Path) -> None:
    path = _corpus(tmp_path / "corpus.ds").path
    expected = _answers_of_file(path, 6)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert all(found == expected for found in pool.map(_answers_of_file, [path] * 4, [6] * 4))
