"""Datastore files: the same every time, small, whole or not at all; checked before they are mapped."""

import dataclasses
import hashlib
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.drafting.sources.datastore import builder
from reader_edge_runtime.drafting.sources.datastore import datastore as datastore_module
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore, open_datastores
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from reader_edge_runtime.drafting.sources.datastore.header import (
    HEADER_BYTES,
    MAX_POSITIONS,
    DatastoreFacts,
    DatastoreHeader,
)
from reader_edge_runtime.errors import DatastoreError, InstallationError
from tests.runtime.drafting.sources.datastore_reference import (
    DOCUMENTS,
    FINGERPRINT,
    NARROW,
    WIDE,
    build,
    check_structure,
)


@pytest.fixture(params=[NARROW, WIDE])
def datastore(request: pytest.FixtureRequest, tmp_path: Path) -> Datastore:
    return build(tmp_path / "corpus.ds", DOCUMENTS, request.param)


def test_the_same_documents_make_the_same_file_merged_or_not(tmp_path: Path, datastore: Datastore) -> None:
    again = build(tmp_path / "again.ds", DOCUMENTS, datastore.header.vocab_size)
    assert again.path.read_bytes() == datastore.path.read_bytes()
    vocab_size = datastore.header.vocab_size
    builder = DatastoreBuilder(FINGERPRINT, vocab_size)
    for number, documents in enumerate((DOCUMENTS[:1], DOCUMENTS[1:])):
        builder.add_datastore(build(tmp_path / f"{number}.ds", documents, vocab_size))
    builder.write(tmp_path / "merged.ds", datastore.facts, lambda phase: None)
    assert (tmp_path / "merged.ds").read_bytes() == datastore.path.read_bytes()


def test_a_file_takes_few_bytes_a_token_of_any_width(tmp_path: Path) -> None:
    documents = np.random.default_rng(0).integers(0, NARROW, (20, 500)).tolist()
    for vocab_size, limit in ((NARROW, 6.7), (WIDE, 8.7)):
        header = build(tmp_path / "corpus.ds", documents, vocab_size).header
        assert header.file_bytes / header.num_tokens < limit
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
        builder.write(tmp_path / "empty.ds", DatastoreFacts((), 0), lambda phase: None)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(
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


def test_without_the_sort_library_building_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    monkeypatch.setattr(builder, "_MAX_SHORT", 0)
    with pytest.raises(InstallationError, match=r"reader-edge\[datastore\]"):
        build(tmp_path / "corpus.ds", DOCUMENTS)
    assert list(tmp_path.iterdir()) == []


def test_the_lack_of_the_sort_library_is_noticed_before_all_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
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


Bytes = npt.NDArray[np.uint8]


def refused(path: Path, **open_as: object) -> str:
    """The one sentence with which a file is refused."""
    with pytest.raises(DatastoreError) as caught:
        Datastore.open(path, **open_as)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert str(path) in message
    return message


def resigned(data: bytes, **changes: object) -> bytes:
    """A file's bytes with other header fields and a right header checksum: the work of an enemy, not of chance."""
    _, _, vocab, tokens, documents, _, _, facts, tokenizer, body = struct.unpack_from("<8sIIQQIIQ32s32s", data)
    header = DatastoreHeader(vocab, tokens, documents, facts, tokenizer.hex(), body.hex())
    return dataclasses.replace(header, **changes).pack() + data[HEADER_BYTES:]  # type: ignore[arg-type]


def test_a_flipped_bit_in_any_byte_of_the_header_is_noticed(tmp_path: Path) -> None:
    datastore = build(tmp_path / "corpus.ds", DOCUMENTS)
    data = datastore.path.read_bytes()
    for offset in range(HEADER_BYTES):
        broken = bytearray(data)
        broken[offset] ^= 1 << offset % 8
        datastore.path.write_bytes(broken)
        refused(datastore.path)


def test_a_flipped_bit_of_the_body_is_found_by_the_checksum(datastore: Datastore) -> None:
    data = datastore.path.read_bytes()
    for offset in range(HEADER_BYTES, len(data), 7):
        broken = bytearray(data)
        broken[offset] ^= 0x10
        datastore.path.write_bytes(broken)
        with pytest.raises(DatastoreError, match="differs from its checksum"):
            Datastore.open(datastore.path).check_body()


def test_a_file_cut_or_extended_anywhere_is_refused(datastore: Datastore) -> None:
    data = datastore.path.read_bytes()
    header = datastore.header
    for size in {0, 4, 8, 100, HEADER_BYTES, header.tokens_at, header.suffixes_at, header.keys_at, len(data) - 1}:
        datastore.path.write_bytes(data[:size])
        refused(datastore.path)
    datastore.path.write_bytes(data + b"\0")
    assert "instead of" in refused(datastore.path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    assert "No datastore at" in refused(path)
    assert "No datastore at" in refused(tmp_path)
    for data in (b"", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n" + bytes(500), bytes(4096)):
        path.write_bytes(data)
        assert "is not a datastore" in refused(path)


def test_files_of_newer_formats_and_other_tokenizers_are_refused(datastore: Datastore) -> None:
    assert "another tokenizer" in refused(datastore.path, tokenizer_fingerprint="cd" * 32)
    assert "token ids up to" in refused(datastore.path, vocab_size=datastore.header.vocab_size - 1)
    data = datastore.path.read_bytes()
    datastore.path.write_bytes(data[:8] + struct.pack("<I", 2) + data[12:])
    assert "upgrade reader-edge" in refused(datastore.path)


@pytest.mark.parametrize(
    "changes",
    [
        *({"num_tokens": 2**63}, {"num_tokens": MAX_POSITIONS}, {"num_tokens": MAX_POSITIONS + 1}, {"num_tokens": 0}),
        *({"num_documents": 0}, {"num_documents": 2**60}, {"vocab_size": 0}, {"vocab_size": 2**32 - 1}),
        *({"facts_bytes": 2**62}, {"facts_bytes": 1 << 20}),
    ],
)
def test_absurd_sizes_are_refused_before_much_is_allocated(datastore: Datastore, changes: dict[str, int]) -> None:
    datastore.path.write_bytes(resigned(datastore.path.read_bytes(), **changes))
    tracemalloc.start()
    try:
        refused(datastore.path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_broken_facts_are_one_sentence(datastore: Datastore) -> None:
    data = bytearray(datastore.path.read_bytes())
    for facts in (b"{", b"[" * 40, b'{"corpus": "x"}', b'{"corpus": ["\\u001b[2J"], "num_corpus_files": 1}'):
        size = datastore.header.facts_bytes
        data[HEADER_BYTES : HEADER_BYTES + size] = facts[:size].ljust(size)
        datastore.path.write_bytes(data)
        with pytest.raises(DatastoreError, match=r"The list of corpus files in .* (not valid JSON|unusable)"):
            _ = Datastore.open(datastore.path).facts


def _any_suffixes(body: Bytes, header: DatastoreHeader, rng: np.random.Generator) -> None:
    body[header.suffixes_at : header.keys_at] = rng.integers(0, 256, header.keys_at - header.suffixes_at)


def _largest_suffixes(body: Bytes, header: DatastoreHeader, rng: np.random.Generator) -> None:
    body[header.suffixes_at : header.keys_at] = 0xFF


def _reversed_suffixes(body: Bytes, header: DatastoreHeader, rng: np.random.Generator) -> None:
    suffixes = body[header.suffixes_at : header.suffixes_at + 4 * header.num_tokens].view(np.uint32)
    suffixes[:] = suffixes[::-1].copy()


def _any_tokens(body: Bytes, header: DatastoreHeader, rng: np.random.Generator) -> None:
    body[header.tokens_at : header.suffixes_at] = rng.integers(0, 256, header.suffixes_at - header.tokens_at)


def _any_keys(body: Bytes, header: DatastoreHeader, rng: np.random.Generator) -> None:
    body[header.keys_at :] = rng.integers(0, 256, len(body) - header.keys_at)


def _any_body(body: Bytes, header: DatastoreHeader, rng: np.random.Generator) -> None:
    body[header.tokens_at :] = rng.integers(0, 256, len(body) - header.tokens_at)


@pytest.mark.parametrize(
    "spoil", [_any_suffixes, _largest_suffixes, _reversed_suffixes, _any_tokens, _any_keys, _any_body]
)
@pytest.mark.parametrize("vocab_size", [NARROW, WIDE])
def test_hostile_bodies_are_borne(
    tmp_path: Path, vocab_size: int, spoil: Callable[[Bytes, DatastoreHeader, np.random.Generator], None]
) -> None:
    rng = np.random.default_rng(3)
    documents = np.minimum(rng.zipf(1.3, (20, 100)), NARROW - 1).tolist()
    datastore = build(tmp_path / "corpus.ds", documents, vocab_size)
    header = datastore.header
    body = np.fromfile(datastore.path, np.uint8)
    spoil(body, header, rng)
    checksum = hashlib.sha256(body[HEADER_BYTES:].tobytes()).hexdigest()
    datastore.path.write_bytes(resigned(body.tobytes(), body_sha256=checksum))

    hostile = Datastore.open(datastore.path, FINGERPRINT, vocab_size)
    hostile.check_body()
    with pytest.raises(DatastoreError, match="is not sound"):
        check_structure(hostile)
    datastores = DatastoreSet([hostile])
    for _ in range(200):
        match = datastores.find(rng.integers(1, 9, 6).tolist(), 64)
        for token_id, count in datastores.successors(match, 64) + datastores.count_successors(match):
            assert 0 <= token_id < vocab_size
            assert 0 <= count <= header.num_tokens
            child = datastores.narrow(match, token_id)
            assert 0 <= child.num_occurrences <= match.num_occurrences or match.length == 0


def test_merging_an_unsound_file_is_refused(tmp_path: Path, datastore: Datastore) -> None:
    header = datastore.header
    body = np.fromfile(datastore.path, np.uint8)
    body[header.tokens_at : header.suffixes_at] = 0xFF
    checksum = hashlib.sha256(body[HEADER_BYTES:].tobytes()).hexdigest()
    datastore.path.write_bytes(resigned(body.tobytes(), body_sha256=checksum))
    builder = DatastoreBuilder(FINGERPRINT, header.vocab_size)
    with pytest.raises(DatastoreError, match="is not sound"):
        builder.add_datastore(Datastore.open(datastore.path))
    foreign = build(tmp_path / "foreign.ds", DOCUMENTS, header.vocab_size, "cd" * 32)
    with pytest.raises(DatastoreError, match="another tokenizer"):
        builder.add_datastore(foreign)


def test_files_of_different_tokenizers_are_not_used_together(tmp_path: Path) -> None:
    ours = build(tmp_path / "ours.ds", DOCUMENTS)
    theirs = build(tmp_path / "theirs.ds", DOCUMENTS, fingerprint="cd" * 32)
    with pytest.raises(DatastoreError, match="different tokenizers"):
        DatastoreSet([ours, theirs])
    with pytest.raises(DatastoreError, match="4 can be used at once"):
        DatastoreSet([ours] * 5)


def is_read_singly(datastore: Datastore) -> bool:
    """Whether the system was advised to read nothing ahead ("rr") of the mapped file."""
    maps = Path("/proc/self/smaps").read_text().split(f"{datastore.path}\n")[1:]
    return any("rr" in next(line for line in lines.splitlines() if line.startswith("VmFlags")) for lines in maps)


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="only Linux tells what a mapping was advised")
def test_files_that_memory_cannot_keep_are_read_by_pages(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    header = datastore.header
    assert not is_read_singly(datastore)
    free: int | None
    for free, is_singly in ((2 * header.file_bytes, False), (None, False), (2 * header.file_bytes - 2, True)):
        monkeypatch.setattr(datastore_module, "free_bytes", lambda has_swap, free=free: free)
        (opened,) = open_datastores([datastore.path], header.tokenizer_fingerprint, header.vocab_size)
        assert is_read_singly(opened) == is_singly
        assert DatastoreSet([opened]).find([2, 3], 8).num_occurrences == 2


def test_where_no_advice_is_taken_files_are_read_as_ever(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore_module, "_RANDOM", None)
    datastore.read_single_pages()
    assert DatastoreSet([datastore]).find([2, 3], 8).num_occurrences == 2


def test_a_file_replaced_while_open_stays_as_it_was(datastore: Datastore) -> None:
    datastores = DatastoreSet([datastore])
    build(datastore.path, [[7, 7, 7]], datastore.header.vocab_size)
    assert datastores.find([2, 3], 8).num_occurrences == 2
    assert DatastoreSet([Datastore.open(datastore.path)]).find([7], 8).num_occurrences == 3
