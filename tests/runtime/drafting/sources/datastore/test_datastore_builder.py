"""Building a datastore: the same file every time, small, from any ids of the vocabulary, whole or not at all."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.drafting.sources.datastore import builder
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts, DatastoreHeader
from reader_edge_runtime.errors import DatastoreError, InstallationError
from tests.runtime.drafting.sources.datastore.datastore_check import check_structure
from tests.runtime.drafting.sources.datastore.datastore_reference import DOCUMENTS, FINGERPRINT, NARROW, WIDE, build


def test_the_same_documents_make_the_same_file(tmp_path: Path, datastore: Datastore) -> None:
    again = build(tmp_path / "again.ds", DOCUMENTS, datastore.header.vocab_size)
    assert again.path.read_bytes() == datastore.path.read_bytes()


def test_a_merge_is_the_file_of_all_documents(tmp_path: Path, datastore: Datastore) -> None:
    vocab_size = datastore.header.vocab_size
    builder = DatastoreBuilder(FINGERPRINT, vocab_size)
    for number, documents in enumerate((DOCUMENTS[:1], DOCUMENTS[1:])):
        builder.add_datastore(build(tmp_path / f"{number}.ds", documents, vocab_size))
    builder.write(tmp_path / "merged.ds", datastore.facts, lambda stage: None)
    assert (tmp_path / "merged.ds").read_bytes() == datastore.path.read_bytes()


def test_a_file_takes_at_most_twelve_bytes_a_token(tmp_path: Path) -> None:
    documents = np.random.default_rng(0).integers(0, NARROW, (20, 500)).tolist()
    for vocab_size, limit in ((NARROW, 6.7), (WIDE, 8.7)):
        header = build(tmp_path / "corpus.ds", documents, vocab_size).header
        assert header.file_bytes / header.num_tokens < limit


def test_the_widest_ids_of_both_widths_are_told_from_the_end_mark(tmp_path: Path) -> None:
    for vocab_size in (0xFFFF, 0x10000, 2**24 - 1):
        documents = [[vocab_size - 1, vocab_size - 1, 0], [vocab_size - 1]]
        datastore = build(tmp_path / "corpus.ds", documents, vocab_size)
        check_structure(datastore)
        datastores = DatastoreSet([datastore])
        match = datastores.find([vocab_size - 1], 4)
        assert match.num_occurrences == 3
        assert datastores.successors(match, 4) == [(0, 1), (vocab_size - 1, 1)]


def test_a_corpus_without_tokens_or_with_foreign_ids_is_refused(tmp_path: Path) -> None:
    builder = DatastoreBuilder(FINGERPRINT, NARROW)
    for token_id in (-1, NARROW, 2**40):
        with pytest.raises(DatastoreError, match=f"Token id {token_id} is outside"):
            builder.add([1, token_id])
    builder.end_document()
    with pytest.raises(DatastoreError, match="holds no token"):
        builder.write(tmp_path / "empty.ds", DatastoreFacts((), 0), lambda stage: None)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = datastore.path.read_bytes()

    def interrupt(self: DatastoreHeader) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(DatastoreHeader, "pack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(datastore.path, DOCUMENTS[:1])
    assert [path.name for path in tmp_path.iterdir()] == [datastore.path.name]
    assert datastore.path.read_bytes() == before


def test_without_the_sort_library_building_tells_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    monkeypatch.setattr(builder, "_MAX_SHORT", 0)
    with pytest.raises(InstallationError, match=r"reader-edge\[datastore\]"):
        build(tmp_path / "corpus.ds", DOCUMENTS)
    assert list(tmp_path.iterdir()) == []


def test_the_lack_of_the_sort_library_is_told_before_all_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    monkeypatch.setattr(builder, "_MAX_SHORT", 2)
    collected = builder.DatastoreBuilder("00" * 32, 10)
    collected.add([1, 2])
    with pytest.raises(InstallationError, match=r"reader-edge\[datastore\]"):
        collected.add([3])


@settings(deadline=None)  # the first sort loads a library
@given(
    stream=st.lists(st.sampled_from([0, 1, 2, 255, 256, 65535]), max_size=80),
    dtype=st.sampled_from([np.uint16, np.uint32]),
)
def test_short_streams_are_sorted_like_long_ones(stream: list[int], dtype: type[np.uint16 | np.uint32]) -> None:
    ids = np.array(stream, dtype)
    expected = sorted(range(len(stream)), key=lambda position: stream[position:])
    assert builder.sort_suffixes(ids).tolist() == expected
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(builder, "_MAX_SHORT", -1)
        assert builder.sort_suffixes(ids).tolist() == expected
